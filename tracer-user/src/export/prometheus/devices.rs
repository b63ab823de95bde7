//! What the GPUs said of themselves, as `crate::nvml::metrics` names it.

use prometheus_client::encoding::DescriptorEncoder;

use super::standing::{Encoded, counters, gauges};
use crate::nvml::metrics::Metric;

pub(super) fn encode(metrics: &[Metric], to: &mut DescriptorEncoder<'_>) -> Encoded {
    for metric in metrics {
        let names = (metric.name, metric.help);
        let series = metric.series.iter().map(|series| (&series.labels, series.value));
        if metric.counter { counters(to, names, series) } else { gauges(to, names, series) }?;
    }
    Ok(())
}
