//! The control socket: whoever may read it asks the running agent, a line of JSON each way.

use std::{
    fs::{self, DirBuilder, Permissions},
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{
        fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Where the socket is unless it is said otherwise.
pub const DEFAULT_PATH: &str = "/run/spanprobe/control.sock";
/// Longest request, bytes.
const MAX_REQUEST: usize = 4_096;
/// Longest answer, bytes.
const MAX_ANSWER: u64 = 16 << 20;
/// Questions that may wait for the main thread; one client is served at a time.
const MAX_ASKED: usize = 4;
/// How long a client may take to ask, and to take its answer.
const CLIENT: Duration = Duration::from_secs(2);
/// How long the main thread may take to answer: letting go of probes takes a while.
const AGENT: Duration = Duration::from_secs(60);

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Why the last while was as it was.
    Why {
        /// How long that while is, ns.
        since_ns: u64,
    },
    /// How the agent is.
    Status,
    /// Let go of every probe.
    Pause,
    /// Attach again.
    Resume,
}

/// A question on its way to the main thread, and where its answer goes.
pub struct Asked {
    /// The question.
    pub request: Request,
    answer: SyncSender<Value>,
}

impl Asked {
    /// Answers. One who has gone away meanwhile misses nothing.
    pub fn answer(self, value: &impl Serialize) {
        let value = serde_json::to_value(value).unwrap_or(Value::Null);
        let _ = self.answer.try_send(json!({ "ok": value }));
    }
}

/// The listening end. The socket is removed with it.
pub struct Control {
    /// Questions.
    pub asked: Receiver<Asked>,
    path: PathBuf,
}

impl Control {
    /// Listens. A socket that nobody listens on is replaced; only its owner may use the new one.
    ///
    /// # Errors
    /// Where another agent listens there, something else lies there, or the folder cannot be used.
    pub fn listen(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(folder).with_context(|| folder.display().to_string())?;
        }
        if let Ok(found) = fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                bail!("{name} is no socket");
            }
            if UnixStream::connect(path).is_ok() {
                bail!("another spanprobe listens on {name}");
            }
            fs::remove_file(path).with_context(|| format!("removing an old {name}"))?;
        }
        let listener = UnixListener::bind(path).with_context(|| name.to_string())?;
        fs::set_permissions(path, Permissions::from_mode(0o600))
            .with_context(|| name.to_string())?;
        let (send, asked) = sync_channel(MAX_ASKED);
        thread::Builder::new()
            .name("control".into())
            .spawn(move || serve(&listener, &send))
            .context("cannot start a thread")?;
        Ok(Self { asked, path: path.to_owned() })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Whoever comes next replaces one that is left.
        let _ = fs::remove_file(&self.path);
    }
}

/// One client at a time, each with a time limit: the others wait in the socket's queue.
fn serve(listener: &UnixListener, asked: &SyncSender<Asked>) {
    for client in listener.incoming() {
        match client {
            Ok(client) => {
                // A client that went away, or was too slow, is not the agent's trouble.
                let _ = answer_one(client, asked);
            }
            // Out of descriptors, mostly: not to be asked again at once.
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn answer_one(mut client: UnixStream, asked: &SyncSender<Asked>) -> io::Result<()> {
    client.set_read_timeout(Some(CLIENT))?;
    client.set_write_timeout(Some(CLIENT))?;
    let answer = if may_ask(&client) {
        match read_request(&client) {
            Ok(request) => ask_agent(request, asked),
            Err(why) => json!({ "error": why }),
        }
    } else {
        json!({ "error": "only root, or the agent's own user, may ask" })
    };
    writeln!(client, "{answer}")
}

/// Only root and the agent's own user.
fn may_ask(client: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(client)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == own)
}

/// A line within the time that a client has in all: one that drips its bytes is cut off.
fn read_request(mut client: &UnixStream) -> Result<Request, String> {
    let began = Instant::now();
    let mut line = Vec::new();
    let mut bytes = [0; 512];
    while !line.contains(&b'\n') && line.len() < MAX_REQUEST {
        let left = CLIENT.checked_sub(began.elapsed()).filter(|left| !left.is_zero());
        let left = left.ok_or("a request is one line, at once")?;
        let read = client.set_read_timeout(Some(left)).and_then(|()| client.read(&mut bytes));
        match read.map_err(|error| error.to_string())? {
            0 => break,
            n => line.extend_from_slice(bytes.get(..n).unwrap_or_default()),
        }
    }
    serde_json::from_slice(&line).map_err(|error| format!("not understood: {error}"))
}

fn ask_agent(request: Request, asked: &SyncSender<Asked>) -> Value {
    let (answer, answered) = sync_channel(1);
    if asked.try_send(Asked { request, answer }).is_err() {
        return json!({ "error": "the agent is busy or ending" });
    }
    match answered.recv_timeout(AGENT) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => json!({ "error": "the agent did not answer in time" }),
        Err(RecvTimeoutError::Disconnected) => json!({ "error": "the agent is ending" }),
    }
}

/// Asks the agent that listens there.
///
/// # Errors
/// Where nobody listens, or the agent refuses.
pub fn ask(path: &Path, request: Request) -> anyhow::Result<Value> {
    let name = path.display();
    let mut agent = UnixStream::connect(path).with_context(|| {
        format!("no spanprobe listens on {name} (`spanprobe run` does; rights to it are root's)")
    })?;
    agent.set_read_timeout(Some(AGENT + CLIENT))?;
    agent.set_write_timeout(Some(CLIENT))?;
    let line = serde_json::to_string(&request)? + "\n";
    agent.write_all(line.as_bytes()).with_context(|| format!("asking on {name}"))?;
    let mut text = String::new();
    BufReader::new(agent).take(MAX_ANSWER).read_line(&mut text).context("no answer came")?;
    let mut answer: Value = serde_json::from_str(&text).context("the answer was cut off")?;
    if let Some(error) = answer.get("error") {
        bail!("{}", error.as_str().unwrap_or("refused"));
    }
    Ok(answer.get_mut("ok").map(Value::take).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    /// Answers `n` questions with what was asked.
    fn echo(control: Control, n: usize) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            for _ in 0..n {
                let asked = control.asked.recv().unwrap();
                let request = asked.request;
                asked.answer(&request);
            }
        })
    }

    #[test]
    fn a_question_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/control.sock");
        let control = Control::listen(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let agent = echo(control, 2);
        let answer = ask(&path, Request::Why { since_ns: 7 }).unwrap();
        assert_eq!(answer, json!({"do": "why", "since_ns": 7}));
        assert_eq!(ask(&path, Request::Pause).unwrap(), json!({"do": "pause"}));
        agent.join().unwrap();
        assert!(!path.exists(), "the socket goes with the agent");
    }

    #[test]
    fn an_old_socket_is_replaced_a_live_one_and_a_file_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        drop(UnixListener::bind(&path).unwrap());
        let control = Control::listen(&path).unwrap();
        assert!(Control::listen(&path).is_err(), "somebody listens");
        drop(control);
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(Control::listen(&file).is_err() && fs::read(&file).unwrap() == b"x");
    }

    #[test]
    fn nonsense_and_silence_are_answered_or_cut_off_and_the_next_is_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let agent = echo(Control::listen(&path).unwrap(), 1);
        let mut silent = UnixStream::connect(&path).unwrap();
        for nonsense in ["{}\n", "[]\n", "\u{0}\n", "{\"do\":\"fly\"}\n"] {
            let mut client = UnixStream::connect(&path).unwrap();
            client.write_all(nonsense.as_bytes()).unwrap();
            let mut answer = String::new();
            BufReader::new(client).read_line(&mut answer).unwrap();
            assert!(answer.contains("error"), "{nonsense:?}: {answer}");
        }
        assert!(ask(&path, Request::Status).is_ok());
        let mut rest = Vec::new();
        silent.read_to_end(&mut rest).unwrap();
        agent.join().unwrap();
    }

    #[test]
    fn nobody_there_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let error = ask(&folder.path().join("none"), Request::Status).unwrap_err();
        assert!(format!("{error:#}").contains("no spanprobe listens"), "{error:#}");
    }
}
