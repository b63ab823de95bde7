//! Every recording of the corpus gives the timelines that it gave when it was made. Needs neither
//! root nor a driver.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use e2e::corpus::{recordings, replay};
use e2e::env::Env;
use e2e::scratch::Scratch;

#[test]
fn recordings_give_the_same_timelines() {
    let env = Env::new().unwrap();
    if !env.spanprobe.is_file() {
        common::skipped("spanprobe is not built");
        return;
    }
    let scratch = Scratch::new("regression").unwrap();
    let files = recordings(&env).unwrap();
    assert!(!files.is_empty(), "the corpus is empty: `e2e corpus` records it");
    for file in files {
        let got = replay(&env, &file, &scratch.file("replayed.jsonl")).unwrap();
        let expected = std::fs::read(file.with_extension("jsonl")).unwrap();
        let (got, expected) =
            (String::from_utf8(got).unwrap(), String::from_utf8(expected).unwrap());
        for (number, (got, expected)) in got.lines().zip(expected.lines()).enumerate() {
            assert_eq!(got, expected, "{}, timeline {number}", file.display());
        }
        assert_eq!(got.lines().count(), expected.lines().count(), "{}", file.display());
    }
}
