//! The script: what happens to the simulated devices, and when.
//!
//! Lines of `AT_MS WHAT`; a line is in force once so many milliseconds have passed since
//! `nvmlInit`. Later lines win. The file is read anew at every call, so lines may be added while a
//! program runs. What is not understood is said on standard error, and passed over.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Code;

/// What the script has done to one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Answers in place of the model's, by what they answer.
    pub values: BTreeMap<String, u64>,
    /// Codes with which questions fail.
    pub faults: BTreeMap<String, Code>,
    /// Corrected and uncorrected memory errors so far.
    pub ecc: [u64; 2],
    /// Instances that it is split into; none where it is not split.
    pub instances: Option<u32>,
    /// Further processes: memory and instance.
    pub processes: BTreeMap<u32, (u64, u32)>,
    /// Bytes in place of its name.
    pub name: Option<Vec<u8>>,
    /// Bytes in place of its UUID.
    pub uuid: Option<Vec<u8>>,
}

/// What the script says up to some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// How many GPUs there are.
    pub gpus: Option<u32>,
    /// What `nvmlInit` fails with.
    pub init: Code,
    /// By GPU.
    pub changes: BTreeMap<u32, Changes>,
    /// XIDs, by the line that has them: GPU and number.
    pub xids: BTreeMap<usize, (u32, u64)>,
    /// Lines that are not understood.
    pub wrong: BTreeSet<usize>,
}

impl Script {
    /// Reads the lines that are in force.
    pub fn read(text: &str, now_ms: u64) -> Self {
        let mut script = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(at) = words.next() else { continue };
            let words: Vec<&str> = words.collect();
            match at.parse::<u64>() {
                Ok(at) if at > now_ms => {}
                Ok(_) if script.apply(number, &words).is_some() => {}
                _ => drop(script.wrong.insert(number)),
            }
        }
        script
    }

    fn apply(&mut self, line: usize, words: &[&str]) -> Option<()> {
        match words {
            ["gpus", count] => self.gpus = Some(count.parse().ok()?),
            ["init", code] => self.init = code.parse().ok()?,
            ["gpu", gpu, "xid", xid] => {
                self.xids.insert(line, (gpu.parse().ok()?, number(xid)?));
            }
            ["gpu", gpu, what @ ..] => {
                self.changes.entry(gpu.parse().ok()?).or_default().apply(what)?;
            }
            _ => return None,
        }
        Some(())
    }
}

impl Changes {
    fn apply(&mut self, words: &[&str]) -> Option<()> {
        match words {
            ["set", key, value] => drop(self.values.insert((*key).to_owned(), number(value)?)),
            ["throttle", bits] => drop(self.values.insert("throttle".to_owned(), number(bits)?)),
            ["unsupported", key] => {
                self.faults.insert((*key).to_owned(), crate::error::NOT_SUPPORTED);
            }
            ["error", key, code] => drop(self.faults.insert((*key).to_owned(), code.parse().ok()?)),
            ["works", key] => drop(self.faults.remove(*key)),
            ["ecc", "corrected", more] => self.add_errors(0, more)?,
            ["ecc", "uncorrected", more] => self.add_errors(1, more)?,
            ["mig", "off"] => self.instances = None,
            ["mig", count] => self.instances = Some(count.parse().ok()?),
            ["process", pid, "gone"] => drop(self.processes.remove(&pid.parse().ok()?)),
            ["process", pid, bytes] => self.add_process(pid, bytes, "0")?,
            ["process", pid, bytes, instance] => self.add_process(pid, bytes, instance)?,
            ["name", bytes] => self.name = Some(raw(bytes)?),
            ["uuid", bytes] => self.uuid = Some(raw(bytes)?),
            _ => return None,
        }
        Some(())
    }

    fn add_errors(&mut self, kind: usize, more: &str) -> Option<()> {
        let count = self.ecc.get_mut(kind)?;
        *count = count.saturating_add(number(more)?);
        Some(())
    }

    fn add_process(&mut self, pid: &str, bytes: &str, instance: &str) -> Option<()> {
        self.processes.insert(pid.parse().ok()?, (number(bytes)?, instance.parse().ok()?));
        Some(())
    }
}

/// Decimal, or hexadecimal with `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Bytes in hexadecimal digits.
fn raw(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<char> = text.chars().collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a comment\n\n0 gpus 2\n0 gpu 0 set power 250000 # mW\n\
        100 gpu 0 throttle 0x20\n200 gpu 0 throttle 0\n0 gpu 1 unsupported encoder\n\
        0 gpu 1 error temperature 15\n50 gpu 1 works temperature\n10 gpu 0 xid 79\n\
        0 gpu 0 ecc corrected 2\n0 gpu 0 ecc corrected 3\n0 gpu 0 mig 2\n\
        0 gpu 0 process 7 1024 1\n60 gpu 0 process 7 gone\n0 gpu 1 name ff00\n";

    #[test]
    fn lines_are_in_force_from_their_time_on() {
        let script = Script::read(TEXT, 0);
        assert_eq!((script.gpus, script.init), (Some(2), 0));
        let (first, second) = (&script.changes[&0], &script.changes[&1]);
        assert_eq!(first.values.get("power"), Some(&250_000));
        assert_eq!(first.values.get("throttle"), None);
        assert_eq!((first.ecc, first.instances), ([5, 0], Some(2)));
        assert_eq!(first.processes.get(&7), Some(&(1024, 1)));
        assert_eq!(second.faults.get("encoder"), Some(&3));
        assert_eq!(second.faults.get("temperature"), Some(&15));
        assert_eq!(second.name.as_deref(), Some(&[0xff, 0][..]));
        assert!(script.xids.is_empty() && script.wrong.is_empty());
        let later = Script::read(TEXT, 100);
        assert_eq!(later.changes[&0].values.get("throttle"), Some(&0x20));
        assert!(later.changes[&0].processes.is_empty());
        assert!(!later.changes[&1].faults.contains_key("temperature"));
        assert_eq!(later.xids.values().collect::<Vec<_>>(), [&(0, 79)]);
    }

    #[test]
    fn what_is_not_understood_is_named_by_its_line() {
        let script = Script::read("x gpus 1\n0 gpus\n0 gpu 0 dance\n0 gpus 3\n0 gpu 0 name f", 9);
        assert_eq!(script.wrong.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(script.gpus, Some(3));
    }
}
