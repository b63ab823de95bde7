//! Processes that end with whoever started them, and whose output can be waited for.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::clock::until;

#[derive(Debug, Default)]
struct Heard {
    lines: Vec<String>,
    taken: usize,
    closed: bool,
}

/// The lines of one stream so far.
#[derive(Debug, Default)]
struct Lines {
    heard: Mutex<Heard>,
    news: Condvar,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(self: &Arc<Self>, stream: impl Read + Send + 'static) -> JoinHandle<()> {
        let lines = Arc::clone(self);
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!(stream.read_until(b'\n', &mut line), Ok(1..)) {
                let text = String::from_utf8_lossy(&line);
                lines.lock().lines.push(text.trim_end_matches('\n').to_owned());
                lines.news.notify_all();
                line.clear();
            }
            lines.lock().closed = true;
            lines.news.notify_all();
        })
    }

    /// Waits for an answer to `look`; `None` when the time is up or the stream has ended.
    fn wait<T>(
        &self,
        within: Duration,
        mut look: impl FnMut(&mut Heard) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + within;
        let mut heard = self.lock();
        loop {
            if let Some(found) = look(&mut heard) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if heard.closed || left.is_zero() {
                return None;
            }
            heard = self.news.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn text(&self) -> String {
        let mut text = self.lock().lines.join("\n");
        if !text.is_empty() {
            text.push('\n');
        }
        text
    }
}

/// A child process; killed, with its group, when this is dropped.
#[derive(Debug)]
pub struct Guard {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    out: Arc<Lines>,
    err: Arc<Lines>,
    /// Not joined: a grandchild may hold the other end open.
    readers: Vec<JoinHandle<()>>,
    own_group: bool,
    ended: Option<ExitStatus>,
}

impl Guard {
    /// Starts it with all three streams piped, as the head of its own process group, so that its
    /// children end with it.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        Self::start(name, command, true)
    }

    /// Starts it with the streams that the command says, in this process's group: what the
    /// terminal sends reaches it too.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn attached(name: &str, command: &mut Command) -> Result<Self> {
        Self::start(name, command, false)
    }

    fn start(name: &str, command: &mut Command, own_group: bool) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child =
            command.spawn().with_context(|| format!("cannot start {name} ({program})"))?;
        let (out, err) = (Arc::new(Lines::default()), Arc::new(Lines::default()));
        let mut readers = Vec::new();
        readers.extend(child.stdout.take().map(|stream| out.listen(stream)));
        readers.extend(child.stderr.take().map(|stream| err.listen(stream)));
        let input = child.stdin.take();
        let name = name.to_owned();
        Ok(Self { name, child, input, out, err, readers, own_group, ended: None })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line of standard output.
    ///
    /// # Errors
    /// When the time is up or the process has ended without it; with what it said instead.
    pub fn wait_out(
        &self,
        what: &str,
        within: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        self.find(&self.out, what, within, wanted)
    }

    /// Waits for a line of standard error.
    ///
    /// # Errors
    /// As [`Guard::wait_out`].
    pub fn wait_err(
        &self,
        what: &str,
        within: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        self.find(&self.err, what, within, wanted)
    }

    fn find(
        &self,
        lines: &Lines,
        what: &str,
        within: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let mut seen = 0;
        let found = lines.wait(within, |heard| {
            let new = heard.lines.get(seen..).unwrap_or_default();
            let found = new.iter().find(|line| wanted(line)).cloned();
            seen = heard.lines.len();
            found
        });
        found.with_context(|| self.silent(what, within))
    }

    /// The next line of standard output that was not taken before.
    ///
    /// # Errors
    /// As [`Guard::wait_out`].
    pub fn next_out(&self, what: &str, within: Duration) -> Result<String> {
        let next = self.out.wait(within, |heard| {
            let line = heard.lines.get(heard.taken).cloned();
            heard.taken += usize::from(line.is_some());
            line
        });
        next.with_context(|| self.silent(what, within))
    }

    fn silent(&self, what: &str, within: Duration) -> String {
        format!(
            "{} did not say {what} within {within:?}; it said\n{}{}",
            self.name,
            self.out.text(),
            self.err.text()
        )
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// Where it does not take it.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("its standard input is closed")?;
        writeln!(input, "{line}").and_then(|()| input.flush()).context("writing to a child")
    }

    /// Closes its standard input.
    pub fn hang_up(&mut self) {
        self.input = None;
    }

    /// What it wrote to standard output so far.
    pub fn out(&self) -> String {
        self.out.text()
    }

    /// What it wrote to standard error so far.
    pub fn err(&self) -> String {
        self.err.text()
    }

    /// Sends it a signal. One that has ended gets none.
    pub fn signal(&mut self, signal: Signal) {
        if self.has_ended() {
            return;
        }
        if let Some(pid) = Pid::from_raw(self.pid().cast_signed()) {
            // It can only be gone.
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.is_some()
    }

    /// Waits for its end, and for the end of its output.
    ///
    /// # Errors
    /// When the time is up.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let what = format!("end of {}", self.name);
        until(&what, within, || self.has_ended().then_some(())).with_context(|| self.err.text())?;
        // Children of its own may hold the streams open: they are not waited for.
        let deadline = Duration::from_secs(2);
        for lines in [&self.out, &self.err] {
            lines.wait(deadline, |heard| heard.closed.then_some(()));
        }
        self.ended.with_context(|| what)
    }

    /// Waits for its end, which must be a good one.
    ///
    /// # Errors
    /// When the time is up or it ended otherwise.
    pub fn succeed(&mut self, within: Duration) -> Result<()> {
        let status = self.wait(within)?;
        if !status.success() {
            bail!("{} ended with {status}:\n{}{}", self.name, self.out(), self.err());
        }
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Once it was waited for, its number may be another's.
        if let Some(pid) = Pid::from_raw(self.pid().cast_signed()).filter(|_| !self.has_ended()) {
            let _ = if self.own_group {
                kill_process_group(pid, Signal::KILL)
            } else {
                kill_process(pid, Signal::KILL)
            };
            let _ = self.child.wait();
        }
        self.readers.clear();
    }
}
