use super::super::fake_elf::{self, CODE, CODE_AT, DATA, Symbol, X86_64, function};
use super::*;

fn names<'elf>(functions: &Functions<'elf>) -> Vec<&'elf str> {
    functions.list.iter().map(|f| f.name).collect()
}

#[test]
fn an_export_is_found_at_its_offset_in_the_file() {
    let image = fake_elf::build(X86_64, &[0x90; 64], &[function("cuInit", CODE + 16, 30)], &[]);
    let found = exported_functions(&image).unwrap();
    assert_eq!(found.machine, Machine::X86_64);
    let expected = Function {
        name: "cuInit",
        address: CODE + 16,
        file_offset: CODE_AT + 16,
        size: 30,
        room: 48,
    };
    assert_eq!(found.list, [expected]);
    assert_eq!(found.skipped, Skipped::default());
}

#[test]
fn machines_are_told_apart() {
    let machine = |number| {
        let image = fake_elf::build(number, &[0; 8], &[function("f", CODE, 4)], &[]);
        exported_functions(&image).unwrap().machine
    };
    assert_eq!(machine(183), Machine::Aarch64);
    assert_eq!(machine(243), Machine::Other(243));
}

#[test]
fn only_defined_global_functions_are_exports() {
    let base = function("kept", CODE, 4);
    let symbols = [
        base,
        Symbol { name: "imported", section: 0, ..base },
        Symbol { name: "local", info: 0x02, ..base },
        Symbol { name: "variable", info: 0x11, ..base },
        Symbol { name: "weak", info: 0x22, ..base },
    ];
    let image = fake_elf::build(X86_64, &[0x90; 8], &symbols, &[]);
    assert_eq!(names(&exported_functions(&image).unwrap()), ["kept", "weak"]);
}

#[test]
fn what_is_left_out_is_counted() {
    let long = "n".repeat(MAX_NAME + 1).leak();
    let symbols = [
        Symbol { info: 0x1a, ..function("resolver", CODE, 4) },
        function("in_data", DATA, 4),
        function("behind_the_code", CODE + 8, 4),
        function("before_the_code", CODE - 1, 4),
        function("", CODE, 4),
        function(long, CODE, 4),
    ];
    let image = fake_elf::build(X86_64, &[0x90; 8], &symbols, &[]);
    let found = exported_functions(&image).unwrap();
    assert!(found.list.is_empty());
    let expected = Skipped { ifunc: 1, bad_name: 2, outside_code: 3, over_cap: 0 };
    assert_eq!(found.skipped, expected);
}

#[test]
fn a_version_suffix_is_no_part_of_the_name() {
    let symbols = [function("read@@GLIBC_2.2.5", CODE, 4), function("write@V1", CODE, 4)];
    let image = fake_elf::build(X86_64, &[0x90; 8], &symbols, &[]);
    assert_eq!(names(&exported_functions(&image).unwrap()), ["read", "write"]);
}

#[test]
fn the_full_table_is_read_only_where_asked() {
    let local = Symbol { info: 0x02, ..function("static_fn", CODE + 4, 4) };
    let image = fake_elf::build(X86_64, &[0x90; 8], &[function("f", CODE, 4)], &[local]);
    assert_eq!(names(&functions(&image, Tables::Exported).unwrap()), ["f"]);
    assert_eq!(names(&functions(&image, Tables::All).unwrap()), ["f", "static_fn"]);
}

#[test]
fn symbols_over_the_cap_are_counted() {
    let one = function("f", CODE, 4);
    let image = fake_elf::build(X86_64, &[0x90; 8], &vec![one; MAX_SYMBOLS + 1], &[]);
    let found = exported_functions(&image).unwrap();
    // The table's first entry is the empty one, which the cap includes.
    assert_eq!((found.list.len(), found.skipped.over_cap), (MAX_SYMBOLS - 1, 2));
}

#[test]
fn other_files_are_named_as_what_they_are() {
    assert!(matches!(exported_functions(b"#!/bin/sh\n"), Err(ElfError::NotElf)));
    assert!(matches!(exported_functions(b""), Err(ElfError::NotElf)));
    let narrow = exported_functions(b"\x7fELF\x01\x01\x01 a 32-bit file");
    assert!(matches!(narrow, Err(ElfError::UnsupportedKind)));
    let cut = exported_functions(b"\x7fELF\x02\x01\x01");
    assert!(matches!(cut, Err(ElfError::Malformed(_))));
    let mut stripped = fake_elf::build(X86_64, &[0x90; 8], &[], &[]);
    stripped[40..48].fill(0);
    stripped[60] = 0;
    let stripped = exported_functions(&stripped);
    assert!(matches!(stripped, Err(ElfError::NoSymbols(".dynsym"))));
}

#[test]
fn identity_is_read_from_notes_and_dynamic_section() {
    let image = fake_elf::build(X86_64, &[0x90; 8], &[], &[]);
    assert_eq!(build_id(&image), Some(vec![0xab, 0xcd]));
    assert_eq!(soname(&image).as_deref(), Some("libfake.so.1"));
    assert_eq!((build_id(b"none"), soname(b"none")), (None, None));
}

#[test]
fn this_very_executable_contains_this_test() {
    let image = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let found = functions(&image, Tables::All).unwrap();
    let this = found
        .list
        .iter()
        .find(|f| f.name.contains("this_very_executable_contains_this_test") && f.size > 0);
    let this = this.unwrap();
    assert!(this.file_offset + this.room <= image.len() as u64);
}
