//! What kind of program an executable is, as far as that decides what can be seen of it.

use object::LittleEndian as LE;
use object::elf::PT_INTERP;
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use super::elf::{ElfError, Image, Machine, Tables, functions};

/// Functions that a TLS library has, and whose presence in an executable means that it was linked
/// in: OpenSSL and BoringSSL, Go, GnuTLS, Mbed TLS, s2n, rustls (its C interface).
const TLS_FUNCTIONS: [&str; 7] = [
    "SSL_read",
    "SSL_write",
    "crypto/tls.(*Conn).Write",
    "gnutls_record_send",
    "mbedtls_ssl_write",
    "s2n_send",
    "rustls_connection_write",
];

/// Beginnings of the file names of TLS libraries, and of Python's module for them.
const TLS_LIBRARIES: [&str; 7] =
    ["libssl.so", "libssl-", "libssl3.so", "libgnutls", "libmbedtls", "libs2n", "_ssl."];

/// An executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binary {
    /// Instruction set.
    pub machine: Machine,
    /// It has no loader: everything is linked in, and nothing can be loaded by name.
    pub is_static: bool,
    /// Written in Go.
    pub go: bool,
    /// A function of a TLS library that is linked in, where the symbols tell.
    pub tls: Option<&'static str>,
    /// It has symbols to ask.
    pub has_symbols: bool,
}

/// Looks at an executable.
///
/// # Errors
/// Where it is no 64-bit ELF file, or its headers contradict each other.
pub fn look(elf: &[u8]) -> Result<Binary, ElfError> {
    let image = Image::parse(elf)?;
    let sections = image.header.sections(LE, elf)?;
    // The linker of Go writes it, and stripping leaves it.
    let go = sections.section_by_name(LE, b".go.buildinfo").is_some();
    let found = functions(elf, Tables::All);
    let tls = found.as_ref().ok().and_then(|found| {
        let named = |name: &&&str| found.list.iter().any(|function| function.name == **name);
        TLS_FUNCTIONS.iter().find(named).copied()
    });
    Ok(Binary {
        machine: image.machine(),
        is_static: !image.segments.iter().any(|segment| segment.p_type(LE) == PT_INTERP),
        go,
        tls,
        has_symbols: found.is_ok_and(|found| !found.list.is_empty()),
    })
}

/// Whether a file name is a TLS library's.
pub fn is_tls_library(name: &str) -> bool {
    TLS_LIBRARIES.iter().any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn this_very_program() {
        let elf = std::fs::read("/proc/self/exe").unwrap();
        let binary = look(&elf).unwrap();
        assert!(!binary.is_static && !binary.go && binary.has_symbols, "{binary:?}");
        assert_eq!(binary.tls, None);
        assert!(look(b"#!/bin/sh\n").is_err());
    }

    #[test]
    fn names_of_libraries() {
        for name in ["libssl.so.3", "libssl.so.1.1", "_ssl.cpython-311-x86_64-linux-gnu.so"] {
            assert!(is_tls_library(name), "{name}");
        }
        for name in ["libc.so.6", "libcrypto.so.3", "libsslx.so"] {
            assert!(!is_tls_library(name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn hostile_files_are_survived(cut in 0usize..4096, at in 0usize..4096, byte: u8) {
            let mut elf = std::fs::read("/bin/true").unwrap();
            if let Some(place) = elf.get_mut(at) {
                *place = byte;
            }
            let _ = look(&elf);
            let _ = look(elf.get(..cut).unwrap_or(&elf));
        }
    }
}
