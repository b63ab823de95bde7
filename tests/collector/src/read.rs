//! What was received, in a shape that tests can compare.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value},
    metrics::v1::{Metric, metric},
    trace::v1::Span,
};

use crate::Received;

/// Attributes as text: numbers and booleans as they print, lists in brackets.
pub type Attributes = BTreeMap<String, String>;

/// A span with its resource.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Of whom it speaks.
    pub resource: Attributes,
    /// What it says.
    pub attributes: Attributes,
    /// As it was received.
    pub span: Span,
}

impl Sent {
    /// Its id as 16 digits.
    pub fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    /// Its trace's id as 32 digits.
    pub fn trace_id(&self) -> String {
        hex(&self.span.trace_id)
    }

    /// Its parent's id; empty where it has none.
    pub fn parent_id(&self) -> String {
        hex(&self.span.parent_span_id)
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Attributes by name.
pub fn attributes(list: &[KeyValue]) -> Attributes {
    list.iter().map(|entry| (entry.key.clone(), value(entry.value.as_ref()))).collect()
}

/// A value as text.
pub fn value(any: Option<&AnyValue>) -> String {
    use any_value::Value;
    match any.and_then(|any| any.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::BoolValue(is)) => is.to_string(),
        Some(Value::IntValue(n)) => n.to_string(),
        Some(Value::DoubleValue(n)) => n.to_string(),
        Some(Value::ArrayValue(list)) => {
            let values: Vec<_> = list.values.iter().map(|any| value(Some(any))).collect();
            format!("[{}]", values.join(","))
        }
        other => format!("{other:?}"),
    }
}

impl Received {
    /// All spans.
    pub fn spans(&self) -> Vec<Sent> {
        let of_resource = self.traces.iter().flat_map(|request| &request.resource_spans);
        of_resource
            .flat_map(|of| {
                let resource = attributes(of.resource.as_ref().map_or(&[], |r| &r.attributes));
                of.scope_spans.iter().flat_map(|scope| &scope.spans).map(move |span| Sent {
                    resource: resource.clone(),
                    attributes: attributes(&span.attributes),
                    span: span.clone(),
                })
            })
            .collect()
    }

    /// Bodies, severities and attributes of all log records.
    pub fn log_lines(&self) -> Vec<(String, String, Attributes)> {
        let of_resource = self.logs.iter().flat_map(|request| &request.resource_logs);
        let records = of_resource.flat_map(|of| &of.scope_logs).flat_map(|of| &of.log_records);
        records
            .map(|record| {
                let body = value(record.body.as_ref());
                (body, record.severity_text.clone(), attributes(&record.attributes))
            })
            .collect()
    }

    /// All metrics with their resources, the latest last.
    pub fn all_metrics(&self) -> Vec<(Attributes, Metric)> {
        let of_resource = self.metrics.iter().flat_map(|request| &request.resource_metrics);
        of_resource
            .flat_map(|of| {
                let resource = attributes(of.resource.as_ref().map_or(&[], |r| &r.attributes));
                let metrics = of.scope_metrics.iter().flat_map(|scope| &scope.metrics);
                metrics.map(move |metric| (resource.clone(), metric.clone()))
            })
            .collect()
    }

    /// Sums and gauges of this name in the latest report of a service: attributes and values.
    pub fn numbers(&self, service: &str, name: &str) -> Vec<(Attributes, String)> {
        let found = self.latest(service, name);
        let points = match found.and_then(|metric| metric.data) {
            Some(metric::Data::Sum(sum)) => sum.data_points,
            Some(metric::Data::Gauge(gauge)) => gauge.data_points,
            _ => Vec::new(),
        };
        let points = points.iter();
        points
            .map(|point| {
                let value = point.value.as_ref().map(|value| match value {
                    opentelemetry_proto::tonic::metrics::v1::number_data_point::Value::AsInt(n) => {
                        n.to_string()
                    }
                    opentelemetry_proto::tonic::metrics::v1::number_data_point::Value::AsDouble(
                        n,
                    ) => n.to_string(),
                });
                (attributes(&point.attributes), value.unwrap_or_default())
            })
            .collect()
    }

    /// Distributions of this name in the latest report of a service: attributes, count and sum.
    pub fn distributions(&self, service: &str, name: &str) -> Vec<(Attributes, u64, f64)> {
        match self.latest(service, name).and_then(|metric| metric.data) {
            Some(metric::Data::Histogram(histogram)) => histogram
                .data_points
                .iter()
                .map(|point| {
                    (attributes(&point.attributes), point.count, point.sum.unwrap_or_default())
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    fn latest(&self, service: &str, name: &str) -> Option<Metric> {
        let of_service = |resource: &Attributes| {
            resource.get("service.name").is_some_and(|known| known == service)
        };
        let mut all = self.all_metrics();
        all.retain(|(resource, metric)| of_service(resource) && metric.name == name);
        all.pop().map(|(_, metric)| metric)
    }
}
