//! What the GPU said of itself, in words for people.

use super::style::{Paint, Style, wrap};
use super::text;
use crate::nvml::{
    Device, Gpu, Joined, Reading, State,
    watch::{THROTTLES, xid_text},
};

/// What a device said last, in a sentence.
pub fn sentence(gpu: &Gpu, now_ns: u64) -> String {
    let Device { uuid, name, .. } = &gpu.device;
    let Some(sample) = &gpu.sample else { return format!("{uuid} {name}: not read yet") };
    let readings = Reading::ALL.iter().map(|reading| (reading, sample.state(*reading)));
    let mut said: Vec<String> = readings
        .clone()
        .filter_map(|(reading, state)| Some(words(reading.as_str(), state.value()?)?.0))
        .collect();
    // Of a device that has fallen off the bus every reading says so.
    let failed = readings.filter(|(_, state)| matches!(state, State::Error(_)));
    if let Some((reading, state)) = failed.clone().next() {
        let more = failed.count() - 1;
        let word = state.word().unwrap_or_default();
        said.push(format!("{} {word}, and {more} more failed", reading.as_str()));
    }
    let age = text::duration(now_ns.saturating_sub(sample.time_ns), false);
    format!("{uuid} {name}: {}, read {age} ago", said.join(", "))
}

/// Appends the line of a request: values only, since what is unsupported is for machines to read.
pub(super) fn line(joined: &Joined, style: Style, out: &mut String) {
    let mut pieces =
        vec![("device".to_owned(), Paint::Bold), (joined.device().to_owned(), Paint::Plain)];
    let mut oldest_ns = 0;
    for (name, state, age_ns) in joined.readings() {
        let Some(value) = state.value() else { continue };
        let Some((words, paint)) = words(name, value) else { continue };
        oldest_ns = age_ns.max(oldest_ns);
        pieces.push((words, paint));
    }
    let age = text::duration(oldest_ns, style.unicode);
    pieces.push((format!("read {age} before its end"), Paint::Dim));
    wrap(&pieces, 2, style, out);
}

/// A reading that a person wants to see, in words.
fn words(name: &str, value: u64) -> Option<(String, Paint)> {
    let plain = |words: String| Some((words, Paint::Plain));
    match name {
        "gpu_utilization_percent" => plain(format!("some kernel ran {value}% of the time")),
        "memory_used_bytes" => plain(format!("{} in use", text::bytes(value))),
        "process_memory_used_bytes" => plain(format!("{} by the process", text::bytes(value))),
        "sm_clock_mhz" => plain(format!("{} MHz", text::count(value))),
        "power_milliwatts" => plain(format!("{} W", text::count(value / 1_000))),
        "temperature_celsius" => plain(format!("{value} C")),
        "throttle_reasons_bits" => {
            let held = THROTTLES.iter().filter(|(bit, _)| value & bit != 0);
            let held: Vec<&str> = held.map(|(_, what)| *what).collect();
            let words = format!("clocks held down: {}", held.join(", "));
            (!held.is_empty()).then_some((words, Paint::Warn))
        }
        "xid_last" => {
            (value != 0).then(|| (format!("XID {value}: {}", xid_text(value)), Paint::Bad))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::{
        History, Taken, Told,
        testing::{gpu, sample, tell},
    };

    #[test]
    fn a_lost_device_says_so_in_its_sentence() {
        let mut taken = sample("GPU-0", 1_000_000, (Reading::Power, State::Error(15)), &[5]);
        let time_ns = taken.time_ns;
        let hot = Taken { state: State::Value(85), time_ns };
        taken.readings.insert(Reading::Temperature, hot);
        let mut history = History::default();
        history.take(&Told::Devices(vec![gpu(0)]));
        let before = sentence(&history.snapshot().gpus[0], time_ns);
        assert!(before.ends_with("not read yet"), "{before}");
        history.take(&tell(taken));
        let said = sentence(&history.snapshot().gpus[0], time_ns + 400_000_000);
        assert!(said.starts_with("GPU-0 "), "{said}");
        assert!(said.contains("85 C, power_milliwatts error(gpu-is-lost)"), "{said}");
        assert!(said.ends_with("read 400ms ago"), "{said}");
    }

    #[test]
    fn it_says_what_a_person_wants_to_know() {
        let mut taken = sample("GPU-0", 1_000_000, (Reading::Power, State::Unsupported), &[5]);
        for (reading, value) in [
            (Reading::GpuUtilization, 0),
            (Reading::MemoryUsed, 3 << 30),
            (Reading::SmClock, 1_980),
            (Reading::ThrottleReasons, 0x21),
            (Reading::XidLast, 79),
        ] {
            let time_ns = taken.time_ns;
            taken.readings.insert(reading, Taken { state: State::Value(value), time_ns });
        }
        let mut history = History::default();
        history.take(&Told::Devices(vec![gpu(0)]));
        history.take(&tell(taken));
        let joined = history.join(5, true, 401_000_000).unwrap();
        let mut out = String::new();
        line(&joined, Style::plain(300), &mut out);
        assert_eq!(
            out,
            "  device  GPU-0  some kernel ran 0% of the time  3.2GB in use  1,980 MHz  \
             clocks held down: heat (software)  XID 79: the GPU has fallen off the bus  \
             5B by the process  read 400ms before its end\n"
        );
    }
}
