//! The state of the simulated driver in this process, behind one lock that is held briefly.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::Handle;
use crate::capture::Capture;
use crate::clock::{Waiting, now, wait_until};
use crate::config::config;
use crate::effects;
use crate::error::{CONTEXT_IS_DESTROYED, CuError, INVALID_CONTEXT, INVALID_VALUE, Res};
use crate::event::Event;
use crate::graph::{Exec, Graph, NodeRef};
use crate::handles::{Class, Table};
use crate::memory::Memory;
use crate::module::{Function, Module};
use crate::process::{current_context, tid};
use crate::schedule::{After, Done, Schedule, When};

/// A context.
pub struct Context {
    pub device: i32,
    pub flags: u32,
    /// The device's primary context: its handle survives its destruction.
    pub primary: bool,
    pub alive: bool,
    pub legacy: Handle,
    pub per_thread: HashMap<u32, Handle>,
    /// Work on streams that the legacy default stream synchronises with.
    pub blocking: After,
    /// All work of the context.
    pub all: After,
    /// A kernel failed: from this time on, every call in the context fails the same way.
    pub lost: Option<(CuError, u64)>,
}

/// A stream.
pub struct Stream {
    pub ctx: Handle,
    /// The handle as the program knows it: 1 legacy default, 2 per-thread default.
    pub public: Handle,
    pub flags: u32,
    pub priority: i32,
    pub tail: When,
    /// The operations that may still be in the launch queue.
    pub recent: VecDeque<When>,
    /// The capture that the stream takes part in, and what its next operation depends on there.
    pub capture: Option<(u64, Vec<usize>)>,
}

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;

impl Stream {
    fn new(ctx: Handle, public: Handle, flags: u32, priority: i32) -> Self {
        Stream {
            ctx,
            public,
            flags,
            priority,
            tail: When::default(),
            recent: VecDeque::new(),
            capture: None,
        }
    }

    pub fn is_legacy(&self) -> bool {
        self.public == 1
    }

    /// Whether the legacy default stream and this one wait for each other.
    pub fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0 && !self.is_legacy()
    }
}

/// Everything.
pub struct Sim {
    pub schedule: Schedule,
    pub memory: Memory,
    pub contexts: Table<Context>,
    pub streams: Table<Stream>,
    pub events: Table<Event>,
    pub modules: Table<Module>,
    pub functions: Table<Function>,
    pub graphs: Table<Graph>,
    pub nodes: Table<NodeRef>,
    pub execs: Table<Exec>,
    /// Memory pools, with their device.
    pub pools: Table<i32>,
    pub default_pools: HashMap<i32, Handle>,
    pub captures: HashMap<u64, Capture>,
    pub next_capture: u64,
    /// Primary contexts, with how often each is retained and the flags set beforehand.
    pub primary: HashMap<i32, (Handle, u32)>,
    pub primary_flags: HashMap<i32, u32>,
}

/// The lock, held.
pub type Guard = MutexGuard<'static, Sim>;

static SIM: LazyLock<Mutex<Sim>> = LazyLock::new(|| {
    Mutex::new(Sim {
        schedule: Schedule::new(config().devices),
        memory: Memory::new(),
        contexts: Table::with_error(Class::Context, INVALID_CONTEXT),
        streams: Table::new(Class::Stream),
        events: Table::new(Class::Event),
        modules: Table::new(Class::Module),
        functions: Table::new(Class::Function),
        graphs: Table::with_error(Class::Graph, INVALID_VALUE),
        nodes: Table::with_error(Class::GraphNode, INVALID_VALUE),
        execs: Table::with_error(Class::GraphExec, INVALID_VALUE),
        pools: Table::with_error(Class::Pool, INVALID_VALUE),
        default_pools: HashMap::new(),
        captures: HashMap::new(),
        next_capture: 1,
        primary: HashMap::new(),
        primary_flags: HashMap::new(),
    })
});

/// Signalled when a host function returned, so that what waited for it has times now.
static SETTLED: Condvar = Condvar::new();

/// Takes the lock.
pub fn lock() -> Guard {
    SIM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes those who wait for completions that were not known.
pub fn notify_settled() {
    SETTLED.notify_all();
}

/// Waits, with the lock, until a host function has returned.
pub fn wait_settled(guard: Guard) -> Guard {
    SETTLED.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Blocks the caller until everything in `after` is complete, bytes included.
pub fn wait(after: &After, how: Waiting) {
    let done = known(after, how);
    wait_until(done.end, how);
    effects::finish(done.effects);
}

/// Blocks until the completion times are known.
pub fn known(after: &After, how: Waiting) -> Done {
    if let Some(done) = after.known() {
        return done;
    }
    let mut guard = lock();
    loop {
        if let Some(done) = after.known() {
            return done;
        }
        if how == Waiting::Block {
            guard = wait_settled(guard);
        } else {
            drop(guard);
            how.relax();
            guard = lock();
        }
    }
}

impl Sim {
    /// The calling thread's context, if it can be used.
    pub fn current(&self) -> Res<Handle> {
        let handle = current_context();
        if handle == 0 {
            return Err(INVALID_CONTEXT);
        }
        self.usable(handle)?;
        Ok(handle)
    }

    /// Fails if the context is gone or lost.
    pub fn usable(&self, ctx: Handle) -> Res<&Context> {
        let context = self.contexts.get(ctx).map_err(|_| CONTEXT_IS_DESTROYED)?;
        if !context.alive {
            return Err(CONTEXT_IS_DESTROYED);
        }
        match context.lost {
            Some((error, since)) if now() >= since => Err(error),
            _ => Ok(context),
        }
    }

    /// How threads wait in a context.
    pub fn waiting(&self, ctx: Handle) -> Waiting {
        let flags = self.contexts.get(ctx).map_or(0, |c| c.flags & 7);
        match flags {
            _ if config().spin => Waiting::Spin,
            1 => Waiting::Spin,
            2 => Waiting::Yield,
            _ => Waiting::Block,
        }
    }

    /// Makes a context.
    pub fn new_context(&mut self, device: i32, flags: u32, primary: bool) -> Handle {
        let ctx = self.contexts.add(Context {
            device,
            flags,
            primary,
            alive: true,
            legacy: 0,
            per_thread: HashMap::new(),
            blocking: After::default(),
            all: After::default(),
            lost: None,
        });
        self.revive(ctx);
        ctx
    }

    /// Gives a context without objects its default stream.
    pub fn revive(&mut self, ctx: Handle) {
        let legacy = self.streams.add(Stream::new(ctx, 1, 0, 0));
        if let Ok(c) = self.contexts.get_mut(ctx) {
            c.legacy = legacy;
            c.alive = true;
            c.lost = None;
        }
    }

    /// Destroys all that a context has. Its work must be complete.
    pub fn empty_context(&mut self, ctx: Handle) {
        self.streams.remove_where(|s| s.ctx == ctx);
        self.events.remove_where(|e| e.ctx == ctx);
        let dead = |m: &Module| m.ctx == ctx;
        self.modules.remove_where(dead);
        self.functions.remove_where(|f| f.ctx == ctx);
        self.captures.retain(|_, c| c.ctx != ctx);
        self.memory.release_context(ctx);
        if let Ok(c) = self.contexts.get_mut(ctx) {
            c.alive = false;
            c.per_thread.clear();
            c.blocking = After::default();
            c.all = After::default();
        }
    }

    /// Makes a stream in the calling thread's context.
    pub fn new_stream(&mut self, flags: u32, priority: i32) -> Res<Handle> {
        let ctx = self.current()?;
        let stream = self.streams.add(Stream::new(ctx, 0, flags, priority));
        if let Ok(s) = self.streams.get_mut(stream) {
            s.public = stream;
        }
        Ok(stream)
    }

    /// The stream that a handle means in a call: 0 depends on the variant called, 1 and 2 are the
    /// named default streams.
    pub fn stream(&mut self, handle: Handle, per_thread: bool) -> Res<Handle> {
        if handle > 2 {
            self.streams.get(handle)?;
            return Ok(handle);
        }
        let ctx = self.current()?;
        if handle == 1 || (handle == 0 && !per_thread) {
            return Ok(self.contexts.get(ctx)?.legacy);
        }
        let me = tid();
        if let Some(&mine) = self.contexts.get(ctx)?.per_thread.get(&me) {
            return Ok(mine);
        }
        let mine = self.streams.add(Stream::new(ctx, 2, 0, 0));
        self.contexts.get_mut(ctx)?.per_thread.insert(me, mine);
        Ok(mine)
    }
}
