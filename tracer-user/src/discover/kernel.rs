//! The kernel's version.

use std::fmt;

/// Version of a kernel: the first two numbers of its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Version {
    /// The running kernel's; `None` where its release is not understood.
    pub fn running() -> Option<Self> {
        Self::parse(&rustix::system::uname().release().to_string_lossy())
    }

    /// Of a release like `6.8.0-45-generic`.
    pub fn parse(release: &str) -> Option<Self> {
        let mut parts = release.split(|c: char| !c.is_ascii_digit());
        Some(Self(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        assert_eq!(Version::parse("6.8.0-45-generic"), Some(Version(6, 8)));
        assert_eq!(Version::parse("5.15"), Some(Version(5, 15)));
        assert_eq!(Version::parse("6.18-rc1+"), Some(Version(6, 18)));
        for bad in ["", "6", "x.y", "-1.2", "99999999999.1"] {
            assert_eq!(Version::parse(bad), None, "{bad}");
        }
        assert!(Version(5, 15) < Version(6, 6));
        assert!(Version::running().is_some());
    }
}
