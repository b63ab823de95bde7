//! JSON lines.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use super::super::jsonl::Jsonl;
use super::samples::{embedding, hostile, stream};

/// Takes `room` bytes, then fails.
#[derive(Debug)]
struct Full {
    room: usize,
    kind: io::ErrorKind,
    calls: Rc<RefCell<usize>>,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        *self.calls.borrow_mut() += 1;
        if self.room == 0 {
            return Err(self.kind.into());
        }
        let taken = bytes.len().min(self.room);
        self.room -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn one_line_each_and_each_is_json() {
    let mut bytes = Vec::new();
    let mut jsonl = Jsonl::new("memory", &mut bytes);
    for timeline in [embedding(), stream(), hostile()] {
        jsonl.write(&timeline).expect("written");
    }
    assert_eq!(jsonl.written(), 0);
    jsonl.flush().expect("flushed");
    assert_eq!((jsonl.written(), jsonl.skipped()), (3, 0));
    let text = String::from_utf8(bytes).expect("UTF-8");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0]["phases"][4]["phase"], "h2d");
    assert_eq!(lines[1]["arrival"], "read");
    assert_eq!(lines[2]["method"], "GET\x1b[31m");
}

#[test]
fn a_failing_output_is_reported_once_and_left_alone() {
    let calls = Rc::new(RefCell::new(0));
    let out = Full { room: 100, kind: io::ErrorKind::BrokenPipe, calls: calls.clone() };
    let mut jsonl = Jsonl::new("standard output", out);
    jsonl.write(&embedding()).expect("gathered");
    let error = jsonl.flush().expect_err("the reader went away");
    assert!(error.is_broken_pipe());
    assert!(error.to_string().starts_with("standard output: "), "{error}");
    let calls_then = *calls.borrow();
    for _ in 0..1_000 {
        jsonl.write(&embedding()).expect("only counted");
        jsonl.flush().expect("nothing to do");
    }
    assert!(jsonl.is_stopped());
    assert_eq!((jsonl.written(), jsonl.skipped()), (0, 1_001));
    assert_eq!(*calls.borrow(), calls_then);
}

#[test]
fn a_full_disk_is_an_error_of_write() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let mut jsonl = Jsonl::new("/dev/full", full);
    let errors = (0..1_000).filter(|_| jsonl.write(&embedding()).is_err()).count();
    assert_eq!(errors, 1);
    assert_eq!(jsonl.skipped(), 1_000);
}
