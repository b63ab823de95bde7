//! The exported symbols: the real driver's stub prologue on every one, and look-ups that give
//! exactly their addresses.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use std::ffi::CString;

use common::{Driver, isolated, library};

/// A function in the library's dynamic symbol table.
struct Function {
    name: String,
    kind: u8,
    size: u64,
    code: Vec<u8>,
}

fn word(bytes: &[u8], at: usize, size: usize) -> usize {
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[at..at + size]);
    u64::from_le_bytes(word) as usize
}

/// Reads the exported functions out of the ELF file (64-bit, little-endian).
fn functions() -> Vec<Function> {
    let file = std::fs::read(library()).unwrap();
    let (headers, count) = (word(&file, 0x28, 8), word(&file, 0x3c, 2));
    let sections: Vec<[usize; 6]> = (0..count)
        .map(|i| {
            let h = headers + i * 64;
            let field = |at, size| word(&file, h + at, size);
            [field(4, 4), field(16, 8), field(24, 8), field(32, 8), field(40, 4), field(56, 8)]
        })
        .collect();
    let [_, _, symbols, size, link, _] = *sections.iter().find(|s| s[0] == 11).unwrap();
    let strings = sections[link][2];
    let mut found = Vec::new();
    for at in (symbols..symbols + size).step_by(24) {
        let (section, address) = (word(&file, at + 6, 2), word(&file, at + 8, 8));
        let name_at = strings + word(&file, at, 4);
        let end = file[name_at..].iter().position(|&b| b == 0).unwrap();
        let name = String::from_utf8(file[name_at..name_at + end].to_vec()).unwrap();
        if section == 0 || !name.starts_with("cu") {
            continue;
        }
        let [_, base, offset, ..] = sections[section];
        let code = address - base + offset;
        found.push(Function {
            name,
            kind: file[at + 4] & 15,
            size: word(&file, at + 16, 8) as u64,
            code: file[code..code + 30].to_vec(),
        });
    }
    found
}

#[test]
#[cfg(target_arch = "x86_64")]
fn every_export_has_the_real_prologue() {
    let functions = functions();
    assert!(functions.len() > 300, "{}", functions.len());
    for f in functions {
        let c = &f.code;
        assert_eq!(f.kind, 2, "{} is a function", f.name);
        assert_eq!(f.size, 30, "{}", f.name);
        assert_eq!(c[..2], [0x81, 0x3d], "{}: cmpl imm32, off(%rip)", f.name);
        assert_eq!(c[6..10], 0x321c_ba00u32.to_le_bytes(), "{}: the flag's value", f.name);
        assert_eq!(c[10..12], [0x74, 0x0c], "{}: je +12", f.name);
        assert_eq!(c[12..14], [0xff, 0x25], "{}: jmp *off(%rip)", f.name);
        assert_eq!(c[24..], [0xb8, 4, 0, 0, 0, 0xc3], "{}: DEINITIALIZED", f.name);
    }
}

/// CUDA releases, as far as they brought functions.
const RELEASES: [i32; 39] = [
    1000, 2000, 2010, 2020, 2030, 3000, 3010, 3020, 4000, 4010, 4020, 5000, 5050, 6000, 6050, 7000,
    8000, 9000, 9010, 9020, 10000, 10010, 10020, 11000, 11010, 11020, 11030, 11040, 11060, 11070,
    12000, 12010, 12020, 12030, 12040, 12050, 12080, 13000, 13010,
];

#[test]
fn look_ups_give_exactly_the_exported_symbols() {
    isolated("look_ups_give_exactly_the_exported_symbols", &[], || {
        let d = Driver::open();
        let mut reached = std::collections::HashSet::new();
        let functions = functions();
        assert!(functions.len() > 300);
        for f in &functions {
            let plain = f.name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
            let base = plain.trim_end_matches(|c: char| c.is_ascii_digit());
            let base = base.strip_suffix("_v").unwrap_or(plain);
            let base = CString::new(base).unwrap();
            for version in RELEASES {
                for flags in [0, 1, 2] {
                    let (mut at, mut status) = (std::ptr::null_mut(), -1);
                    let rc =
                        d.cuGetProcAddress_v2(base.as_ptr(), &mut at, version, flags, &mut status);
                    assert_eq!(rc, 0);
                    assert_eq!(at.is_null(), status != 0, "{base:?}");
                    reached.insert(at as usize);
                }
            }
        }
        for f in &functions {
            let at = d.symbol(&f.name) as usize;
            assert!(reached.contains(&at), "{} cannot be looked up", f.name);
        }
        let mut at = std::ptr::null_mut();
        let mut status = 0;
        let rc = d.cuGetProcAddress_v2(c"cuNoSuch".as_ptr(), &mut at, 13_000, 0, &mut status);
        assert_eq!((rc, at.is_null(), status), (0, true, 1));
    });
}
