//! What is sent where: from `--otlp` and the `OTEL_*` variables.
//!
//! Headers, compression and the preference for temporality are read by the exporters themselves;
//! what matters to us beyond them is read here.

use std::time::Duration;

use opentelemetry_sdk::{
    Resource,
    resource::{EnvResourceDetector, ResourceDetector as _},
};
use thiserror::Error;

/// Where a collector listens by default: gRPC.
const GRPC_DEFAULT: &str = "http://localhost:4317";
/// The same for HTTP.
const HTTP_DEFAULT: &str = "http://localhost:4318";
/// The port that collectors keep for OTLP over HTTP.
const HTTP_PORT: &str = ":4318";
/// How long one export may take, retries included.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often metrics are sent.
const INTERVAL: Duration = Duration::from_secs(60);

/// A setting that makes no sense, or that asks for what spanprobe cannot do.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{name}: {why}")]
pub struct SettingError {
    /// Which.
    pub name: String,
    /// What is wrong with it.
    pub why: String,
}

fn wrong(name: &str, why: impl Into<String>) -> SettingError {
    SettingError { name: name.to_owned(), why: why.into() }
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Requests, as spans.
    Traces,
    /// Distributions and counts.
    Metrics,
    /// The event log.
    Logs,
}

impl Signal {
    /// All.
    pub const ALL: [Self; 3] = [Self::Traces, Self::Metrics, Self::Logs];

    /// As paths and notes have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }

    /// As it is in names of variables.
    fn upper(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
            Self::Logs => "LOGS",
        }
    }
}

/// How it is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC.
    Grpc,
    /// Protobuf in the body of a POST.
    Http,
}

/// Where one signal goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The collector; for HTTP with the signal's path.
    pub endpoint: String,
    /// How.
    pub protocol: Protocol,
    /// How long one export may take, retries included.
    pub timeout: Duration,
}

/// Everything that was set.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where traces go; none: they are not sent.
    pub traces: Option<Target>,
    /// Where metrics go.
    pub metrics: Option<Target>,
    /// Where the event log goes.
    pub logs: Option<Target>,
    /// `OTEL_RESOURCE_ATTRIBUTES`.
    pub attributes: Resource,
    /// `OTEL_SERVICE_NAME`, or `service.name` of the attributes: names every traced process.
    pub service: Option<String>,
    /// How often metrics are sent.
    pub interval: Duration,
    /// What was set and is not followed, for the operator.
    pub notes: Vec<String>,
}

impl Settings {
    /// From the flag's value, where it has one, and this process's environment.
    ///
    /// # Errors
    /// Names the setting that makes no sense, or that spanprobe cannot follow.
    pub fn from_env(endpoint: Option<&str>) -> Result<Self, SettingError> {
        let mut settings =
            Self::read(endpoint, |name| std::env::var(name).ok().filter(|v| !v.is_empty()))?;
        settings.attributes = EnvResourceDetector::new().detect();
        if settings.service.is_none() {
            let name = settings.attributes.get(&"service.name".into());
            settings.service = name.map(|name| name.to_string());
        }
        Ok(settings)
    }

    /// The same from any environment, without the resource's attributes.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn read(
        endpoint: Option<&str>,
        var: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingError> {
        let mut notes = Vec::new();
        let disabled = var("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"));
        if disabled {
            notes.push("OTEL_SDK_DISABLED is true: nothing is sent over OTLP".to_owned());
        }
        let mut target = |signal: Signal| -> Result<Option<Target>, SettingError> {
            if disabled || !wanted(signal, &var, &mut notes) {
                return Ok(None);
            }
            let protocol = protocol(signal, endpoint, &var)?;
            Ok(Some(Target {
                endpoint: address(signal, protocol, endpoint, &var)?,
                protocol,
                timeout: timeout(signal, &var)?,
            }))
        };
        let [traces, metrics, logs] = Signal::ALL.map(&mut target);
        Ok(Self {
            traces: traces?,
            metrics: metrics?,
            logs: logs?,
            attributes: Resource::builder_empty().build(),
            service: var("OTEL_SERVICE_NAME"),
            interval: millis("OTEL_METRIC_EXPORT_INTERVAL", &var)?.unwrap_or(INTERVAL),
            notes,
        })
    }
}

/// Whether the signal is to be sent: `OTEL_TRACES_EXPORTER` and so on.
fn wanted(signal: Signal, var: &impl Fn(&str) -> Option<String>, notes: &mut Vec<String>) -> bool {
    let name = format!("OTEL_{}_EXPORTER", signal.upper());
    match var(&name).as_deref() {
        None | Some("otlp") => true,
        Some("none") => false,
        Some(other) => {
            notes.push(format!("{name} is {other:?}: only otlp and none are known; otlp it is"));
            true
        }
    }
}

/// The variable of a signal, or the one for all.
fn of_signal(
    signal: Signal,
    what: &str,
    var: &impl Fn(&str) -> Option<String>,
) -> Option<(String, String)> {
    [format!("OTEL_EXPORTER_OTLP_{}_{what}", signal.upper()), format!("OTEL_EXPORTER_OTLP_{what}")]
        .into_iter()
        .find_map(|name| var(&name).map(|value| (name, value)))
}

/// What was set; without that, gRPC, and HTTP for an endpoint that is plainly HTTP's.
fn protocol(
    signal: Signal,
    flag: Option<&str>,
    var: &impl Fn(&str) -> Option<String>,
) -> Result<Protocol, SettingError> {
    let Some((name, value)) = of_signal(signal, "PROTOCOL", var) else {
        let endpoint = flag
            .map(str::to_owned)
            .or_else(|| of_signal(signal, "ENDPOINT", var).map(|(_, endpoint)| endpoint));
        let http = endpoint.is_some_and(|endpoint| {
            let endpoint = endpoint.trim_end_matches('/');
            endpoint.ends_with(HTTP_PORT) || endpoint.contains("/v1/")
        });
        return Ok(if http { Protocol::Http } else { Protocol::Grpc });
    };
    match value.to_ascii_lowercase().as_str() {
        "grpc" => Ok(Protocol::Grpc),
        "http/protobuf" => Ok(Protocol::Http),
        _ => Err(wrong(&name, format!("{value:?} is not supported: grpc or http/protobuf"))),
    }
}

/// Where the signal goes. The flag is said last and wins over every variable.
fn address(
    signal: Signal,
    protocol: Protocol,
    flag: Option<&str>,
    var: &impl Fn(&str) -> Option<String>,
) -> Result<String, SettingError> {
    let own = format!("OTEL_EXPORTER_OTLP_{}_ENDPOINT", signal.upper());
    let (name, endpoint, whole) = match (flag, var(&own)) {
        (Some(flag), _) => ("--otlp".to_owned(), flag.to_owned(), false),
        (None, Some(endpoint)) => (own, endpoint, true),
        (None, None) => match of_signal(signal, "ENDPOINT", var) {
            Some((name, endpoint)) => (name, endpoint, false),
            None => {
                let default = if protocol == Protocol::Grpc { GRPC_DEFAULT } else { HTTP_DEFAULT };
                ("--otlp".to_owned(), default.to_owned(), false)
            }
        },
    };
    let endpoint = endpoint.trim_end_matches('/');
    let endpoint = match endpoint.split_once("://") {
        Some(("http", host)) if !host.is_empty() => endpoint.to_owned(),
        Some(("https", _)) => {
            return Err(wrong(
                &name,
                "TLS is not supported: send to a collector nearby over http://, which can pass it on",
            ));
        }
        Some((scheme, _)) => return Err(wrong(&name, format!("{scheme:?} is no scheme of OTLP"))),
        None if endpoint.is_empty() => return Err(wrong(&name, "is empty")),
        None => format!("http://{endpoint}"),
    };
    let path = match (protocol, whole) {
        (Protocol::Http, false) => format!("/v1/{}", signal.as_str()),
        _ => String::new(),
    };
    if path.is_empty() || endpoint.ends_with(&path) {
        return Ok(endpoint);
    }
    Ok(format!("{endpoint}{path}"))
}

fn timeout(
    signal: Signal,
    var: &impl Fn(&str) -> Option<String>,
) -> Result<Duration, SettingError> {
    match of_signal(signal, "TIMEOUT", var) {
        None => Ok(TIMEOUT),
        Some((name, _)) => Ok(millis(&name, var)?.unwrap_or(TIMEOUT)),
    }
}

/// Milliseconds, at least one and at most an hour.
fn millis(
    name: &str,
    var: &impl Fn(&str) -> Option<String>,
) -> Result<Option<Duration>, SettingError> {
    let Some(value) = var(name) else { return Ok(None) };
    match value.parse::<u64>() {
        Ok(ms @ 1..=3_600_000) => Ok(Some(Duration::from_millis(ms))),
        _ => Err(wrong(name, format!("{value:?} is no time in ms from 1 to 3600000"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(flag: Option<&str>, vars: &[(&str, &str)]) -> Result<Settings, SettingError> {
        Settings::read(flag, |name| {
            vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn traces(flag: Option<&str>, vars: &[(&str, &str)]) -> (Protocol, String) {
        let target = read(flag, vars).unwrap().traces.unwrap();
        (target.protocol, target.endpoint)
    }

    #[test]
    fn where_to_and_how() {
        use Protocol::{Grpc, Http};
        const ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
        const OWN: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        const HOW: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
        let http = (HOW, "http/protobuf");
        for (flag, vars, protocol, endpoint) in [
            (None, vec![], Grpc, "http://localhost:4317"),
            (None, vec![http], Http, "http://localhost:4318/v1/traces"),
            (Some("http://c:1"), vec![(ALL, "http://x:2")], Grpc, "http://c:1"),
            (Some("c:1"), vec![], Grpc, "http://c:1"),
            (Some("http://c:4318/"), vec![], Http, "http://c:4318/v1/traces"),
            (None, vec![(ALL, "http://x:2/"), http], Http, "http://x:2/v1/traces"),
            (None, vec![(OWN, "http://x:2/in"), (ALL, "http://y"), http], Http, "http://x:2/in"),
            (None, vec![(OWN, "http://x:2/v1/traces")], Http, "http://x:2/v1/traces"),
        ] {
            assert_eq!(traces(flag, &vars), (protocol, endpoint.to_owned()), "{flag:?} {vars:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (flag, vars, name) in [
            (Some("https://c:1"), vec![], "--otlp"),
            (Some("ftp://c"), vec![], "--otlp"),
            (Some("/"), vec![], "--otlp"),
            (
                None,
                vec![("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")],
                "OTEL_EXPORTER_OTLP_PROTOCOL",
            ),
            (None, vec![("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")], "OTEL_EXPORTER_OTLP_TIMEOUT"),
            (None, vec![("OTEL_METRIC_EXPORT_INTERVAL", "0")], "OTEL_METRIC_EXPORT_INTERVAL"),
        ] {
            assert_eq!(read(flag, &vars).unwrap_err().name, name, "{flag:?} {vars:?}");
        }
    }

    #[test]
    fn what_is_not_wanted_is_not_sent() {
        let settings = read(None, &[("OTEL_TRACES_EXPORTER", "none")]).unwrap();
        assert!(settings.traces.is_none() && settings.logs.is_some());
        let settings = read(None, &[("OTEL_SDK_DISABLED", "True")]).unwrap();
        assert!(settings.traces.is_none() && settings.metrics.is_none() && settings.logs.is_none());
        assert_eq!(settings.notes.len(), 1);
        let settings = read(None, &[("OTEL_LOGS_EXPORTER", "console")]).unwrap();
        assert!(settings.logs.is_some() && settings.notes.len() == 1);
    }
}
