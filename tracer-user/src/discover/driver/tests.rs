use proptest::prelude::*;

use super::super::attach_point::Emulated;
use super::super::fake_elf::{self, CODE, CODE_AT, X86_64, function};
use super::*;

/// The stub of the real driver: `cmpl $imm, off(%rip)`, `je`, `jmp *table`, the error's return.
const STUB: [u8; 32] = [
    0x81, 0x3d, 0x6e, 0x14, 0x91, 0x01, 0x00, 0xba, 0x1c, 0x32, 0x74, 0x0c, 0xff, 0x25, 0xc6, 0xa4,
    0x81, 0x01, 0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0xb8, 0x04, 0x00, 0x00, 0x00, 0xc3, 0x66, 0x90,
];

const AT_THE_JUMP: AttachReason = AttachReason::Emulated(Emulated::ConditionalJump);

fn two_stubs() -> Vec<u8> {
    [STUB, STUB].concat()
}

#[test]
fn a_wanted_stub_is_probed_at_its_jump() {
    let exports = [function("cuInit", CODE, 30), function("cuLaunchKernel", CODE + 32, 30)];
    let image = fake_elf::build(X86_64, &two_stubs(), &exports, &[]);
    let plan = plan(&image, &|name| name == "cuLaunchKernel").unwrap();
    let expected = Site {
        symbol: "cuLaunchKernel".into(),
        aliases: vec![],
        function_offset: CODE_AT + 32,
        attach_offset: CODE_AT + 42,
        reason: AT_THE_JUMP,
    };
    assert_eq!(plan.sites, [expected]);
    let stats = &plan.stats;
    assert_eq!((stats.exports, stats.wanted, stats.sites), (2, 1, 1));
    assert_eq!(stats.by_reason, BTreeMap::from([(AT_THE_JUMP, 1)]));
    assert_eq!(plan.soname.as_deref(), Some("libfake.so.1"));
    assert_eq!(plan.build_id, Some(vec![0xab, 0xcd]));
}

#[test]
fn aliases_make_one_site() {
    let exports = ["b", "a", "unwanted", "a"].map(|name| function(name, CODE, 30));
    let image = fake_elf::build(X86_64, &STUB, &exports, &[]);
    let plan = plan(&image, &|name| name != "unwanted").unwrap();
    assert_eq!(plan.sites.len(), 1);
    assert_eq!((plan.stats.exports, plan.stats.wanted), (4, 3));
    assert_eq!(plan.sites[0].symbol, "b");
    assert_eq!(plan.sites[0].aliases, ["a", "unwanted"]);
}

#[test]
fn the_entry_of_another_function_is_never_passed() {
    // A second name for the `je`, as C libraries have for the part after a check.
    let exports = [function("outer", CODE, 30), function("inner", CODE + 10, 20)];
    let image = fake_elf::build(X86_64, &STUB, &exports, &[]);
    let plan = plan(&image, &|name| name == "outer").unwrap();
    assert_eq!(plan.sites[0].attach_offset, CODE_AT);
    assert_eq!(plan.sites[0].reason, AttachReason::Entry(Why::AnotherFunction));
}

#[test]
fn a_function_of_unknown_size_ends_where_the_next_begins() {
    let exports = [function("first", CODE, 0), function("last", CODE + 32, 0)];
    let image = fake_elf::build(X86_64, &two_stubs(), &exports, &[]);
    let plan = plan(&image, &|_| true).unwrap();
    assert_eq!(plan.stats.by_reason, BTreeMap::from([(AT_THE_JUMP, 2)]));
}

#[test]
fn work_is_bounded_however_often_the_same_code_is_claimed() {
    let mut code = vec![0x90; MAX_BODY + 4096];
    code[..2].copy_from_slice(&[0x85, 0xff]);
    let exports: Vec<_> = (0..2048).map(|n| function("f", CODE + n, MAX_BODY as u64)).collect();
    let image = fake_elf::build(X86_64, &code, &exports, &[]);
    let plan = plan(&image, &|_| true).unwrap();
    let spent = plan.stats.by_reason[&AttachReason::Entry(Why::BudgetSpent)];
    assert_eq!(spent, 2048 - MAX_SEARCHED / MAX_BODY);
}

#[test]
fn arm_is_probed_at_the_entry() {
    let image = fake_elf::build(183, &STUB, &[function("cuInit", CODE, 30)], &[]);
    let plan = plan(&image, &|_| true).unwrap();
    assert_eq!(plan.sites[0].reason, AttachReason::Entry(Why::OtherMachine));
    assert_eq!(plan.sites[0].attach_offset, CODE_AT);
}

#[test]
fn no_mutation_of_a_real_executable_panics() {
    let mut image = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let sections = u64::from_le_bytes(image[40..48].try_into().unwrap()) as usize;
    // Headers, program headers and the section headers: where every byte steers the parser.
    for at in (0..1024).chain(sections..image.len().min(sections + 1024)) {
        let before = image[at];
        for value in [0, 1, 0x7f, 0xff, before.wrapping_add(8)] {
            image[at] = value;
            let _ = plan(&image, &|name| name.len() < 4);
        }
        image[at] = before;
    }
}

proptest! {
    #[test]
    fn mutated_images_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
    ) {
        let exports = [function("a", CODE, 30), function("b", CODE + 32, 0)];
        let mut image = fake_elf::build(X86_64, &two_stubs(), &exports, &exports);
        // The zeroes between headers and note steer nothing: half the changes skip them.
        for (index, value) in changes {
            let at = index.index(image.len() * 2) ;
            let at = if at < image.len() { at } else { 0x1000 + at % (image.len() - 0x1000) };
            image[at] = value;
        }
        if !whole {
            image.truncate(cut.index(image.len()));
        }
        fuzz_elf(&image);
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        fuzz_elf(&bytes);
        if let Some(start) = bytes.get_mut(..7) {
            start.copy_from_slice(b"\x7fELF\x02\x01\x01");
        }
        fuzz_elf(&bytes);
    }
}
