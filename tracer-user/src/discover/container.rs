//! Which container a process is in, from the names of its control groups.
//!
//! Container runtimes put each container into a group of its own and name that by the container's
//! id. What people call a container is mostly not in there (LXC and systemd-nspawn excepted).
//!
//! | runtime | last parts of the path |
//! |---|---|
//! | Docker | `/docker/<id>`, `/system.slice/docker-<id>.scope` |
//! | containerd | `…/<id>`, `cri-containerd-<id>.scope`, `…:cri-containerd:<id>`, `nerdctl-<id>.scope` |
//! | CRI-O | `/crio-<id>`, `crio-<id>.scope` |
//! | podman | `libpod-<id>`, `libpod-<id>.scope`, both perhaps with `/container` behind |
//! | Kubernetes | above those `pod<uid>`, `kubepods-…-pod<uid>.slice` with `_` for `-` |
//! | LXC, nspawn | `/lxc/<name>`, `lxc.payload.<name>`, `machine-<name>.scope` |

use std::{
    fs::File,
    io::{self, Read as _},
};

/// Bytes of the page that are read: a line for each hierarchy.
const MAX_PAGE: u64 = 64 << 10;
/// Digits of an id; nobody has another number.
const ID_DIGITS: usize = 64;
/// The fewest digits by which an id is told.
pub const MIN_PREFIX: usize = 12;

/// A container, as far as control groups tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its id, 64 hexadecimal digits, or its name where the runtime uses that.
    pub name: Option<String>,
    /// Uid of the Kubernetes pod it belongs to.
    pub pod: Option<String>,
}

impl Container {
    /// Nothing is told.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether this is meant by an id, a beginning of one, or a name.
    pub fn is(&self, wanted: &Wanted) -> bool {
        let Some(name) = &self.name else { return false };
        *name == wanted.0 || is_id(name) && wanted.is_prefix() && name.starts_with(&wanted.0)
    }
}

/// A container that somebody asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted(String);

impl Wanted {
    /// An id, a beginning of one (at least [`MIN_PREFIX`] digits), or a name.
    ///
    /// # Errors
    /// Where it is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if text.is_empty() || text.contains('/') || text.len() > 255 {
            return Err("an id or a name of a container is wanted".to_owned());
        }
        if digits && text.len() < MIN_PREFIX && text.bytes().any(|byte| byte.is_ascii_digit()) {
            return Err(format!("at least {MIN_PREFIX} digits of an id are wanted"));
        }
        let text = if digits { text.to_ascii_lowercase() } else { text.to_owned() };
        Ok(Self(text))
    }

    /// It can be the beginning of an id.
    pub fn is_prefix(&self) -> bool {
        self.0.len() >= MIN_PREFIX && self.0.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// As it was asked for.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The container of a process.
///
/// # Errors
/// Where the process is gone.
pub fn of(pid: u32) -> io::Result<Container> {
    let mut page = Vec::new();
    File::open(format!("/proc/{pid}/cgroup"))?.take(MAX_PAGE).read_to_end(&mut page)?;
    Ok(parse(&String::from_utf8_lossy(&page)))
}

/// Lines like `0::/system.slice/docker-<id>.scope`. Hierarchies may disagree: the first that tells
/// something decides.
fn parse(page: &str) -> Container {
    let mut found = Container::default();
    for path in page.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
        let mut name = None;
        let mut pod = None;
        let mut parent = "";
        // The innermost wins: containers may hold containers.
        for part in path.split('/') {
            name = container(part, parent).or(name);
            pod = pod_uid(part).or(pod);
            parent = part;
        }
        found.name = found.name.or(name);
        found.pod = found.pod.or(pod);
    }
    found
}

/// The container that a part of a path is of.
fn container(part: &str, parent: &str) -> Option<String> {
    let scope = part.strip_suffix(".scope").unwrap_or(part);
    // `kubepods-burstable-pod<uid>.slice:cri-containerd:<id>`, and `<runtime>-<id>`.
    let last = scope.rsplit([':', '-']).next().unwrap_or(scope);
    if is_id(last) {
        // What watches over a container is not in it.
        let watcher = scope.contains("conmon") || part.ends_with(".slice");
        return (!watcher).then(|| last.to_ascii_lowercase());
    }
    let named = part
        .strip_prefix("lxc.payload.")
        .or_else(|| part.strip_suffix(".scope")?.strip_prefix("machine-"))
        .or_else(|| part.strip_suffix(".service")?.strip_prefix("systemd-nspawn@"))
        .or_else(|| (parent == "lxc").then_some(part))?;
    let name = unescaped(named);
    (!name.is_empty()).then_some(name)
}

fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// systemd writes a `-` within a name as `\x2d`.
fn unescaped(name: &str) -> String {
    name.replace("\\x2d", "-")
}

/// `pod<uid>`, `kubepods-besteffort-pod<uid>.slice`, where a `-` of the uid may be a `_`.
fn pod_uid(part: &str) -> Option<String> {
    let part = part.split(':').next().unwrap_or(part);
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let uid = match part.strip_prefix("pod") {
        Some(uid) => uid,
        None => part.strip_prefix("kubepods")?.rsplit_once("-pod")?.1,
    };
    let uid = uid.replace('_', "-");
    // A UUID, or, of static pods, 32 digits.
    let plain = uid.len() >= 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    plain.then_some(uid)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "3f4b1c9a0d2e5f6a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c";
    const UID: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

    fn found(path: &str) -> (Option<String>, Option<String>) {
        let Container { name, pod } = parse(&format!("0::{path}\n"));
        (name, pod)
    }

    #[test]
    fn every_runtime_s_form() {
        let id = || Some(ID.to_owned());
        for path in [
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/system.slice/containerd.service/docker/{ID}/init.scope"),
            format!("/default/{ID}"),
            format!("/system.slice/nerdctl-{ID}.scope"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/libpod_parent/libpod-{ID}"),
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope"),
            format!("/../../docker/{ID}"),
            format!("/ecs/0123456789abcdef0123456789abcdef/{ID}"),
        ] {
            assert_eq!(found(&path), (id(), None), "{path}");
        }
        let underscored = UID.replace('-', "_");
        for path in [
            format!("/kubepods/besteffort/pod{UID}/{ID}"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{underscored}.slice/\
                 cri-containerd-{ID}.scope"
            ),
            format!("/kubepods.slice/kubepods-pod{underscored}.slice/crio-{ID}.scope"),
            format!("/system.slice/kubepods-besteffort-pod{underscored}.slice:cri-containerd:{ID}"),
        ] {
            assert_eq!(found(&path), (id(), Some(UID.to_owned())), "{path}");
        }
    }

    #[test]
    fn names_where_the_runtime_uses_them() {
        for path in
            ["/lxc/web/init.scope", "/lxc.payload.web", "/machine.slice/machine-web.scope/payload"]
        {
            assert_eq!(found(path), (Some("web".to_owned()), None), "{path}");
        }
        let path = r"/machine.slice/machine-a\x2db.scope";
        assert_eq!(found(path).0.as_deref(), Some("a-b"));
    }

    #[test]
    fn what_is_no_container() {
        for path in [
            "/".to_owned(),
            "/user.slice/user-1000.slice/session-3.scope".to_owned(),
            format!("/machine.slice/libpod-conmon-{ID}.scope"),
            format!("/machine.slice/machine-libpod_pod_{ID}.slice"),
            "/kubepods/pods".to_owned(),
            "/system.slice/podman.service".to_owned(),
        ] {
            assert_eq!(found(&path), (None, None), "{path}");
        }
    }

    #[test]
    fn the_innermost_and_the_first_that_tells() {
        let other = ID.replace('3', "4");
        let page = format!(
            "12:cpu,cpuacct:/docker/{other}/kubepods/pod{UID}/{ID}\n1:name=systemd:/\n0::/docker/{other}\n"
        );
        let container = parse(&page);
        assert_eq!(container.name.as_deref(), Some(ID));
        assert_eq!(container.pod.as_deref(), Some(UID));
    }

    #[test]
    fn who_is_meant() {
        let container = parse(&format!("0::/docker/{ID}\n"));
        let is = |text: &str| container.is(&Wanted::parse(text).unwrap());
        assert!(is(ID) && is(&ID[..12]) && is(&ID[..12].to_uppercase()));
        assert!(!is(&ID[1..13]) && !is("web"));
        let named = parse("0::/lxc/web\n");
        assert!(named.is(&Wanted::parse("web").unwrap()));
        assert!(!named.is(&Wanted::parse("we").unwrap()));
        assert!(!Container::default().is(&Wanted::parse("web").unwrap()));
        for bad in ["", "a/b", "3f4b1c9a0d2"] {
            assert!(Wanted::parse(bad).is_err(), "{bad}");
        }
        assert!(Wanted::parse("cafe").is_ok(), "a name may be made of letters");
    }

    #[test]
    fn a_process_has_one_or_none() {
        assert!(of(std::process::id()).is_ok());
        assert!(of(u32::MAX).is_err());
    }

    proptest! {
        #[test]
        fn hostile_pages_are_survived(page in r"(?s)(0::|/|pod|kubepods|-|\.scope|\.slice|[0-9a-f]{64}|.){0,40}") {
            if let Some(name) = parse(&page).name {
                prop_assert!(!name.is_empty());
            }
        }
    }
}
