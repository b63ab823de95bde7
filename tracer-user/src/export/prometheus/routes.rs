//! The services and routes that are told apart, each with what is counted for it.

use std::{collections::HashMap, sync::Arc};

use prometheus_client::metrics::counter::Counter;

use super::{
    labels::{Names, OTHER, OverflowLabels, Overflows, RouteLabels},
    series::Series,
};

/// Services told apart.
pub(super) const MAX_SERVICES: usize = 32;
/// Routes told apart, those of all services together.
pub(super) const MAX_ROUTES: usize = 100;

/// All of them.
#[derive(Debug)]
pub(super) struct Routes {
    services: Names,
    by_name: HashMap<Arc<str>, HashMap<Box<str>, usize>>,
    all: Vec<Series>,
    /// Routes told apart so far, `other` not among them.
    known: usize,
    overflow: Counter,
}

impl Routes {
    /// None yet.
    pub(super) fn new(overflows: &Overflows) -> Self {
        Self {
            services: Names::new("service", MAX_SERVICES, overflows),
            by_name: HashMap::new(),
            all: Vec::new(),
            known: 0,
            overflow: overflows.get_or_create_owned(&OverflowLabels { label: "route" }),
        }
    }

    /// The label of a service.
    pub(super) fn service(&mut self, name: &str) -> Arc<str> {
        self.services.of(name)
    }

    /// Where a route's requests are counted. A route that is new gets a place of its own where
    /// there is one left and it is `admitted`; otherwise it is `other`.
    pub(super) fn at(&mut self, service: &str, route: &str, admitted: bool) -> Option<&mut Series> {
        let service = self.services.of(service);
        if !self.by_name.contains_key(&service) {
            self.by_name.insert(Arc::clone(&service), HashMap::new());
        }
        let routes = self.by_name.get_mut(&service)?;
        if let Some(at) = routes.get(route) {
            return self.all.get_mut(*at);
        }
        let full = self.known >= MAX_ROUTES;
        if full {
            self.overflow.inc();
        }
        let route = if full || !admitted { OTHER } else { route };
        let at = match routes.get(route) {
            Some(at) => *at,
            None => {
                self.known += usize::from(route != OTHER);
                routes.insert(route.into(), self.all.len());
                self.all.push(Series::new(RouteLabels { service, route: route.into() }));
                self.all.len() - 1
            }
        };
        self.all.get_mut(at)
    }

    /// Everything that is told apart.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Series> {
        self.all.iter_mut()
    }
}
