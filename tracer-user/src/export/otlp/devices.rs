//! What the GPUs said of themselves, as metrics: `crate::nvml::metrics` under the names that
//! OpenTelemetry's hardware convention gives them.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use opentelemetry::{
    KeyValue,
    metrics::{AsyncInstrument, Meter},
};

use super::attributes::cut;
use crate::nvml::metrics::Metric;

/// Endings of Prometheus' names, and the units of the Unified Code for Units of Measure that stand
/// beside a name in OpenTelemetry. The longer of two comes first.
const UNITS: [(&str, &str); 8] = [
    ("_bytes_per_second", "By/s"),
    ("_bytes", "By"),
    ("_ratio", "1"),
    ("_watts", "W"),
    ("_joules", "J"),
    ("_celsius", "Cel"),
    ("_hertz", "Hz"),
    ("_seconds", "s"),
];

/// The metrics of every device, as of the last round.
pub struct Devices {
    meter: Meter,
    known: BTreeSet<&'static str>,
    latest: Arc<Mutex<Vec<Metric>>>,
}

impl Devices {
    /// To be reported by this meter.
    pub fn new(meter: Meter) -> Self {
        Self { meter, known: BTreeSet::new(), latest: Arc::default() }
    }

    /// Time has passed. What has no value now is not reported, nor is a device that is gone.
    pub fn round(&mut self, metrics: Vec<Metric>) {
        for metric in &metrics {
            if self.known.insert(metric.name) {
                self.register(metric);
            }
        }
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = metrics;
    }

    fn register(&self, metric: &Metric) {
        let (name, unit) = named(metric.name);
        let (latest, wanted) = (Arc::clone(&self.latest), metric.name);
        let observe = move |observer: &dyn AsyncInstrument<f64>| {
            let metrics = latest.lock().unwrap_or_else(PoisonError::into_inner);
            let series = metrics.iter().filter(|metric| metric.name == wanted);
            for series in series.flat_map(|metric| &metric.series) {
                let labels: Vec<KeyValue> = series
                    .labels
                    .iter()
                    .map(|(key, value)| KeyValue::new(attribute(key), cut(value)))
                    .collect();
                observer.observe(series.value, &labels);
            }
        };
        // What observes stays with the meter's provider.
        if metric.counter {
            let counter = self.meter.f64_observable_counter(name).with_unit(unit);
            let _ = counter.with_description(metric.help).with_callback(observe).build();
        } else {
            let gauge = self.meter.f64_observable_gauge(name).with_unit(unit);
            let _ = gauge.with_description(metric.help).with_callback(observe).build();
        }
    }
}

/// The name without its unit, and the unit.
fn named(name: &str) -> (String, &'static str) {
    let unit = UNITS.iter().find_map(|(end, unit)| Some((name.strip_suffix(end)?, *unit)));
    let (name, unit) = unit.unwrap_or((name, "1"));
    // Names of the convention have a dot between all their words; ours behind the first two.
    let name = match name.strip_prefix("spanprobe_gpu_") {
        Some(own) => format!("spanprobe.gpu.{own}"),
        None => name.replace('_', "."),
    };
    (name, unit)
}

/// An attribute for a label.
fn attribute(label: &'static str) -> String {
    match label {
        "gpu" => "hw.id".to_owned(),
        "name" => "hw.name".to_owned(),
        "parent" => "hw.parent".to_owned(),
        "hw_gpu_task" => "hw.gpu.task".to_owned(),
        "error_type" => "error.type".to_owned(),
        "sensor" => "hw.sensor_location".to_owned(),
        own => format!("spanprobe.{own}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_convention() {
        for (prometheus, name, unit) in [
            ("hw_gpu_utilization_ratio", "hw.gpu.utilization", "1"),
            ("hw_gpu_memory_usage_bytes", "hw.gpu.memory.usage", "By"),
            ("hw_power_watts", "hw.power", "W"),
            ("hw_errors", "hw.errors", "1"),
            ("spanprobe_gpu_memory_copy_ratio", "spanprobe.gpu.memory_copy", "1"),
            ("spanprobe_gpu_pcie_bytes_per_second", "spanprobe.gpu.pcie", "By/s"),
            ("spanprobe_gpu_sample_age_seconds", "spanprobe.gpu.sample_age", "s"),
        ] {
            assert_eq!(named(prometheus), (name.to_owned(), unit));
        }
    }
}
