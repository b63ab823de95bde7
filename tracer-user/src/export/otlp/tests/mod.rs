//! Against a real receiver, and against collectors that misbehave.

mod faults;
mod props;
mod signals;
mod whole;

use collector::Collector;

use super::{Otlp, Settings};

/// The run's number; its trace holds the GPU steps.
const RUN: u128 = 7;

/// Settings for this endpoint, over HTTP or gRPC, and with these variables.
fn settings(endpoint: &str, http: bool, vars: &[(&str, &str)]) -> Settings {
    let protocol = if http { "http/protobuf" } else { "grpc" };
    Settings::read(Some(endpoint), |name| {
        let set = vars.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        set.or((name == "OTEL_EXPORTER_OTLP_PROTOCOL").then_some(protocol)).map(str::to_owned)
    })
    .unwrap()
}

/// Sends there.
fn open(endpoint: &str, http: bool, vars: &[(&str, &str)]) -> Otlp {
    Otlp::open(settings(endpoint, http, vars), "host-a", RUN).unwrap()
}

/// A collector of each kind that behaves like this.
fn both(behaviour: collector::Behaviour) -> [(Collector, bool); 2] {
    [(Collector::grpc(behaviour), false), (Collector::http(behaviour), true)]
}
