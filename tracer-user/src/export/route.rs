//! Which requests are traffic, and what their paths have in common.

use std::borrow::Cow;

/// What stands for a part of a path that names one thing among many.
const ID: &str = "{id}";
/// Parts of a path that are kept.
const MAX_PARTS: usize = 12;
/// A part that is longer names one thing among many, bytes.
const MAX_PART: usize = 64;
/// As is one of this length with a digit in it, bytes: `chatcmpl-9f2c…`, `file_67…`.
const ID_LIKE: usize = 20;

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

/// The path as a label: what names one thing among many is `{id}`, so that `/users/17/photo` and
/// `/users/18/photo` are one route.
///
/// Such are numbers, UUIDs, parts that hold what no path may hold, that are longer than 64 bytes, or
/// that have 20 bytes and a digit among them; but not what follows `models` or `versions`, which
/// names what is served. Parts after the twelfth are left out.
pub fn route_label(route: &str) -> Cow<'_, str> {
    let path = route.split(['?', '#']).next().unwrap_or("");
    let mut before = "";
    let plain = path.split('/').enumerate().all(|(at, part)| {
        let kept = at <= MAX_PARTS && !is_id(before, part);
        before = part;
        kept
    });
    if plain {
        return Cow::Borrowed(path);
    }
    let mut label = String::with_capacity(path.len().min(MAX_PARTS * (MAX_PART + 1)));
    before = "";
    for (at, part) in path.split('/').enumerate() {
        if at > 0 {
            label.push('/');
        }
        if at > MAX_PARTS {
            label.push_str("...");
            break;
        }
        label.push_str(if is_id(before, part) { ID } else { part });
        before = part;
    }
    Cow::Owned(label)
}

/// Whether a part of a path names one thing among many.
fn is_id(before: &str, part: &str) -> bool {
    if part.len() > MAX_PART || !part.bytes().all(|byte| byte.is_ascii_graphic()) {
        return true;
    }
    if matches!(before, "models" | "versions") {
        return false;
    }
    let digits = part.bytes().filter(u8::is_ascii_digit).count();
    digits > 0 && (digits == part.len() || part.len() >= ID_LIKE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_one_thing_is_no_part_of_a_route() {
        let long = "x".repeat(65);
        for (route, label) in [
            ("/", "/"),
            ("", ""),
            ("*", "*"),
            ("/v1/chat/completions?stream=1", "/v1/chat/completions"),
            ("/users/17/photo", "/users/{id}/photo"),
            ("/files/550e8400-e29b-41d4-a716-446655440000", "/files/{id}"),
            ("/v1/responses/resp_67ccd2bed1ec8190b14f964abc", "/v1/responses/{id}"),
            (
                "/v2/models/Llama-3.1-8B-Instruct-AWQ/versions/3/infer",
                "/v2/models/Llama-3.1-8B-Instruct-AWQ/versions/3/infer",
            ),
            ("/v1beta/openai/embeddings", "/v1beta/openai/embeddings"),
            ("/a b/\u{1f600}", "/{id}/{id}"),
            (
                "/1/2/3/4/5/6/7/8/9/10/11/12/13/14",
                "/{id}/{id}/{id}/{id}/{id}/{id}/{id}/{id}/{id}/{id}/{id}/{id}/...",
            ),
            (&format!("/models/{long}"), "/models/{id}"),
        ] {
            assert_eq!(route_label(route), label, "{route}");
        }
    }

    #[test]
    fn a_label_is_a_label_of_itself() {
        for route in ["/users/17", "/v2/models/m1/versions/2/ready", "/1/2/3/4/5/6/7/8/9/a/b/c/d/e"]
        {
            let once = route_label(route).into_owned();
            assert_eq!(route_label(&once), once);
        }
    }
}
