//! What the GPU said of itself around a request, in a line for people.

use super::style::{Paint, Style, wrap};
use super::text;
use crate::nvml::{
    Joined,
    watch::{THROTTLES, xid_text},
};

/// Appends the line: values only, since what is unsupported is for machines to read.
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
        History, Reading, State, Taken, Told,
        testing::{gpu, sample, tell},
    };

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
