//! Session files: what enters the intake is written as it comes, and fed back on replay.
//!
//! A file holds captured payload, so it is created for its owner's eyes alone and credentials are
//! overwritten on the way in: [`redact`] says which, and what is lost.

pub mod format;
pub mod reader;
pub mod redact;
pub mod writer;

mod bodies;
mod lines;

pub use self::{
    reader::{Ending, OpenError, Reader, open},
    writer::{CreateError, Options, State, Stopped, Writer, create},
};
use crate::intake::{input::Input, order::Intake};

/// Takes any bytes for a session file, redacts what it holds both ways and pushes everything
/// through the intake. For fuzzing: whatever comes, it returns.
pub fn fuzz(data: &[u8]) {
    let Ok(mut reader) = Reader::new(data) else { return };
    let mut redactors = [redact::Redactor::new(false), redact::Redactor::new(true)];
    let mut intake = Intake::default();
    while let Some(input) = reader.read() {
        if let Input::Record(record) = input {
            for redactor in &mut redactors {
                redactor.redact(&mut record.to_vec());
            }
        }
        intake.push(input);
        while intake.next_due().is_some() {}
    }
    intake.finish();
    while intake.next_due().is_some() {}
}

#[cfg(test)]
mod tests;
