//! Who a span, a distribution or a line speaks of.

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;

use super::{attributes::cut, settings::Settings};
use crate::timeline::model::Timeline;

/// What all resources of this run share.
#[derive(Clone, Debug)]
pub struct Resources {
    /// Of every resource; the environment's attributes among them.
    common: Vec<KeyValue>,
    /// The name for all traced processes, where one was set.
    service: Option<String>,
    host: String,
    /// Tells this run from others.
    run: u128,
}

impl Resources {
    /// For a run on this host.
    pub fn new(settings: &Settings, host: &str, run: u128) -> Self {
        let mut common = vec![
            KeyValue::new("host.name", cut(host)),
            KeyValue::new("telemetry.sdk.language", "rust"),
            KeyValue::new("telemetry.sdk.name", "opentelemetry"),
            KeyValue::new("telemetry.distro.name", "spanprobe"),
            KeyValue::new("telemetry.distro.version", env!("CARGO_PKG_VERSION")),
        ];
        let set = settings.attributes.iter();
        common.extend(set.map(|(key, value)| KeyValue::new(key.clone(), value.clone())));
        Self { common, service: settings.service.clone(), host: host.to_owned(), run }
    }

    /// Of the traced process that answered a request.
    pub fn process(&self, request: &Timeline) -> Resource {
        let (service, pid) = (request.service.as_str(), request.pid);
        let instance = format!("{}:{pid}", self.host);
        let mut own = vec![
            KeyValue::new("process.executable.name", cut(service)),
            KeyValue::new("process.pid", i64::from(pid)),
        ];
        if let Some(container) = request.container.as_deref() {
            // Runtimes that name their control groups by the container's name have no id there.
            let is_id = container.len() == 64 && container.bytes().all(|b| b.is_ascii_hexdigit());
            let key = if is_id { "container.id" } else { "container.name" };
            own.push(KeyValue::new(key, cut(container)));
        }
        own.extend(request.pod.as_deref().map(|uid| KeyValue::new("k8s.pod.uid", cut(uid))));
        self.named(self.service.as_deref().unwrap_or(service), instance, own)
    }

    /// Of all traced processes of one name: distributions add them up.
    pub fn service(&self, service: &str) -> Resource {
        let instance = format!("{}:{:032x}", self.host, self.run);
        self.named(
            self.service.as_deref().unwrap_or(service),
            instance,
            vec![KeyValue::new("process.executable.name", cut(service))],
        )
    }

    /// Of spanprobe itself.
    pub fn agent(&self) -> Resource {
        let pid = i64::from(std::process::id());
        let instance = format!("{}:{:032x}", self.host, self.run);
        self.named("spanprobe", instance, vec![KeyValue::new("process.pid", pid)])
    }

    /// The later of two attributes with one name is kept.
    fn named(&self, name: &str, instance: String, own: Vec<KeyValue>) -> Resource {
        Resource::builder_empty()
            .with_attributes(self.common.clone())
            .with_attribute(KeyValue::new("service.name", cut(name)))
            .with_attribute(KeyValue::new("service.instance.id", cut(&instance)))
            .with_attributes(own)
            .build()
    }
}
