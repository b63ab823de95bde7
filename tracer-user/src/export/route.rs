//! Which requests are traffic.

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteClass {
    /// Work for a user: counts in every aggregate.
    Traffic,
    /// A health check or a metrics scrape: shown apart, left out of aggregates by default.
    Health,
}

/// Tells health checks and scrapes from traffic, by the path alone (a trailing slash and a query
/// do not matter, case does).
///
/// Health: `/health`, `/healthz`, `/ready`, `/readyz`, `/livez`, `/ping`, `/metrics`, all below
/// `/v2/health/`, and readiness of a model in the KServe protocol
/// (`/v2/models/NAME/ready`, `/v2/models/NAME/versions/VERSION/ready`).
///
/// SGLang's `/health_generate` runs a generation on the GPU and is traffic.
pub fn route_class(route: &str) -> RouteClass {
    let path = route.split(['?', '#']).next().unwrap_or("");
    let path = path.strip_suffix('/').unwrap_or(path);
    let known = matches!(
        path,
        "/health" | "/healthz" | "/ready" | "/readyz" | "/livez" | "/ping" | "/metrics"
    );
    if known || path.starts_with("/v2/health/") || is_model_ready(path) {
        RouteClass::Health
    } else {
        RouteClass::Traffic
    }
}

/// `/v2/models/NAME/ready` or `/v2/models/NAME/versions/VERSION/ready`.
fn is_model_ready(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/v2/models/") else { return false };
    let parts: Vec<&str> = rest.split('/').collect();
    matches!(parts.as_slice(), [_, "ready"] | [_, "versions", _, "ready"])
}
