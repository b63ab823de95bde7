use proptest::prelude::*;

use super::*;

fn at(code: &[u8]) -> (u64, AttachReason) {
    let point = choose(code, Machine::X86_64);
    (point.offset, point.reason)
}

/// Asserts that the code is probed at the offset, where the kind is emulated.
#[track_caller]
fn emulates(code: &[u8], offset: u64, kind: Emulated) {
    assert_eq!(at(code), (offset, AttachReason::Emulated(kind)));
}

/// Asserts that the code is probed at its entry, for the reason.
#[track_caller]
fn stays(code: &[u8], why: Why) {
    assert_eq!(at(code), (0, AttachReason::Entry(why)));
}

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const PUSH_RBP: [u8; 1] = [0x55];
const RET: u8 = 0xc3;

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn the_stub_of_the_real_driver() {
    let stub = [
        0x81, 0x3d, 0x6e, 0x14, 0x91, 0x01, 0x00, 0xba, 0x1c, 0x32, // cmpl $imm, off(%rip)
        0x74, 0x0c, // je
        0xff, 0x25, 0xc6, 0xa4, 0x81, 0x01, // jmp *table(%rip)
        0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00, // nop
        0xb8, 0x04, 0x00, 0x00, 0x00, RET, // mov $4, %eax; ret
    ];
    emulates(&stub, 10, Emulated::ConditionalJump);
}

#[test]
fn pushes_of_64_bit_registers() {
    for register in 0x50..=0x57 {
        emulates(&[register, RET], 0, Emulated::Push);
        emulates(&[0x41, register, RET], 0, Emulated::Push);
    }
    // Other prefixes, immediates and memory operands are single-stepped; all move the stack.
    for code in [&[0x48, 0x55][..], &[0x66, 0x55], &[0x6a, 1], &[0x68, 1, 0, 0, 0], &[0xff, 0x37]] {
        stays(&join(&[code, &[RET]]), Why::WritesRegister);
    }
}

#[test]
fn branches_short_and_near() {
    for condition in 0x70..=0x7f {
        emulates(&[condition, 1, RET, RET], 0, Emulated::ConditionalJump);
        emulates(&[0x0f, condition + 0x10, 1, 0, 0, 0], 0, Emulated::ConditionalJump);
    }
    emulates(&[0xeb, 0], 0, Emulated::Jump);
    emulates(&[0xe9, 0, 0, 0, 0], 0, Emulated::Jump);
    // Indirect jump, return, jrcxz, loop: not emulated, and control leaves.
    for code in [&[0xff, 0x25, 0, 0, 0, 0][..], &[RET], &[0xe3, 0], &[0xe2, 0], &[0x0f, 0x0b]] {
        stays(code, Why::ControlFlow);
    }
}

#[test]
fn a_call_is_taken_only_at_the_entry() {
    let call = [0xe8, 0, 0, 0, 0];
    emulates(&call, 0, Emulated::Call);
    stays(&join(&[&ENDBR64, &call, &PUSH_RBP]), Why::ControlFlow);
}

#[test]
fn nops_of_one_byte() {
    emulates(&[0x90, RET], 0, Emulated::Nop);
    emulates(&join(&[&ENDBR64, &[0x90, RET]]), 4, Emulated::Nop);
    // `pause` is passed over by some kernels as a nop, by others not: not chosen.
    stays(&[0xf3, 0x90, RET], Why::OtherInstruction);
}

#[test]
fn long_nops_only_where_nothing_better_follows() {
    let nops: [&[u8]; 7] = [
        &[0x0f, 0x1f, 0x00],
        &[0x0f, 0x1f, 0x40, 0],
        &[0x0f, 0x1f, 0x44, 0, 0],
        &[0x66, 0x0f, 0x1f, 0x44, 0, 0],
        &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
        &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
        &[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    ];
    for nop in nops {
        emulates(&join(&[nop, &[RET]]), 0, Emulated::LongNop);
        emulates(&join(&[&ENDBR64, nop, &[RET]]), 4, Emulated::LongNop);
        emulates(&join(&[nop, &PUSH_RBP, &[RET]]), nop.len() as u64, Emulated::Push);
    }
    // Unlike the kernel's own: passed over. `66 90`: refused before 6.2, never chosen.
    emulates(&[0x0f, 0x1f, 0x44, 0, 8, 0x55], 5, Emulated::Push);
    stays(&[0x66, 0x90, RET], Why::ControlFlow);
    emulates(&[0x66, 0x90, 0x55], 2, Emulated::Push);
}

#[test]
fn endbr64_is_passed_over() {
    emulates(&join(&[&ENDBR64, &PUSH_RBP, &[RET]]), 4, Emulated::Push);
    stays(&join(&[&ENDBR64, &[RET]]), Why::ControlFlow);
}

#[test]
fn reading_memory_and_writing_flags_or_scratch_registers_is_harmless() {
    let harmless: [&[u8]; 9] = [
        &[0x85, 0xff],                               // test %edi, %edi
        &[0x39, 0x7c, 0x24, 0x08],                   // cmp %edi, 8(%rsp)
        &[0x4c, 0x8b, 0x54, 0x24, 0x08],             // mov 8(%rsp), %r10
        &[0x44, 0x8b, 0x1d, 0, 0, 0, 0],             // mov off(%rip), %r11d
        &[0x4c, 0x8d, 0x1d, 0, 0, 0, 0],             // lea off(%rip), %r11
        &[0x45, 0x31, 0xd2],                         // xor %r10d, %r10d
        &[0x64, 0x4c, 0x8b, 0x14, 0x25, 0, 0, 0, 0], // mov %fs:0, %r10
        &[0x45, 0x0f, 0xb6, 0xd3],                   // movzbl %r11b, %r10d
        &[0x0f, 0xba, 0xe7, 0x03],                   // bt $3, %edi
    ];
    for code in harmless {
        emulates(&join(&[code, &PUSH_RBP, &[RET]]), code.len() as u64, Emulated::Push);
    }
}

#[test]
fn a_written_register_ends_the_search() {
    let writes: [&[u8]; 13] = [
        &[0x31, 0xc0],             // xor %eax, %eax: the count of vector arguments
        &[0x89, 0xd7],             // mov %edx, %edi
        &[0x40, 0x88, 0xd7],       // mov %dl, %dil
        &[0x31, 0xf6],             // xor %esi, %esi
        &[0x48, 0x89, 0xc2],       // mov %rax, %rdx
        &[0x31, 0xc9],             // xor %ecx, %ecx
        &[0x45, 0x31, 0xc0],       // xor %r8d, %r8d
        &[0x45, 0x31, 0xc9],       // xor %r9d, %r9d
        &[0x48, 0x83, 0xec, 0x08], // sub $8, %rsp
        &[0x48, 0x89, 0xe5],       // mov %rsp, %rbp
        &[0x0f, 0x57, 0xc0],       // xorps %xmm0, %xmm0
        &[0xc5, 0xf8, 0x77],       // vzeroupper
        &[0x0f, 0xa2],             // cpuid
    ];
    for code in writes {
        stays(&join(&[code, &PUSH_RBP, &[RET]]), Why::WritesRegister);
    }
}

#[test]
fn written_memory_and_unlisted_instructions_end_the_search() {
    stays(&[0x89, 0x7c, 0x24, 0xf8, 0x55], Why::WritesMemory); // mov %edi, -8(%rsp)
    stays(&[0xff, 0x05, 0, 0, 0, 0, 0x55], Why::WritesMemory); // incl off(%rip)
    stays(&[0xfc, 0x55], Why::OtherInstruction); // cld
    stays(&[0x0f, 0xae, 0xe8, 0x55], Why::OtherInstruction); // lfence
    stays(&[0x0f, 0x05, 0x55], Why::ControlFlow); // syscall
}

#[test]
fn ends_and_limits() {
    stays(&[], Why::NoCode);
    stays(&[0x81, 0x3d, 0x6e], Why::Undecodable);
    stays(&[0x06, 0x55], Why::Undecodable);
    stays(&[0x85, 0xff], Why::Undecodable);
    stays(&join(&[&[0x85, 0xff].repeat(MAX_PROLOGUE), &PUSH_RBP]), Why::LongPrologue);
    let other = choose(&PUSH_RBP, Machine::Aarch64);
    assert_eq!(other, AttachPoint::entry(Why::OtherMachine));
    assert_eq!(choose(&PUSH_RBP, Machine::Other(8)), AttachPoint::entry(Why::OtherMachine));
}

#[test]
fn a_point_behind_another_functions_entry_is_not_taken() {
    let code = [0x85, 0xff, 0x74, 0x00, RET];
    let within = |reach| choose_within(&code, reach, Machine::X86_64);
    assert_eq!(within(2), AttachPoint::entry(Why::AnotherFunction));
    assert_eq!(within(3).offset, 2);
}

#[test]
fn a_branch_back_into_the_prologue_is_seen() {
    let head = [0x85, 0xff, 0x74, 0x04]; // test %edi, %edi; je
    let back = |to: u8| join(&[&head, &[0xff, 0xcf, 0xeb, to, RET]]); // dec %edi; jmp to
    stays(&back(0xfa), Why::BranchTarget); // to the `je` itself
    // To the entry: the function called anew, which the entry would count as well.
    emulates(&back(0xf8), 2, Emulated::ConditionalJump);
    emulates(&back(0xfc), 2, Emulated::ConditionalJump); // behind the `je`
    let loops = join(&[&head, &[0xe2, 0xfc, RET]]); // loop to the `je`
    stays(&loops, Why::BranchTarget);
    let far = join(&[&head, &[0x0f, 0x85, 0xf8, 0xff, 0xff, 0xff]]);
    stays(&far, Why::BranchTarget);
}

#[test]
fn a_body_too_long_to_search_is_probed_at_the_entry() {
    let mut code = vec![RET; MAX_BODY];
    code[..4].copy_from_slice(&[0x85, 0xff, 0x74, 0x00]);
    emulates(&code, 2, Emulated::ConditionalJump);
    code.push(RET);
    stays(&code, Why::LongBody);
    code[0] = 0x55;
    emulates(&code, 0, Emulated::Push);
}

#[test]
fn what_the_kernel_refuses_or_misreads_is_said() {
    let refused: [&[u8]; 6] = [
        &[0x2e, 0x74, 0x00, RET],                            // branch hint
        &[0x3e, 0xff, 0xe0],                                 // notrack jmp *%rax
        &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, RET], // ten-byte nop
        &[0xf0, 0xff, 0x07, RET],                            // lock incl (%rdi)
        &[0x66, 0xe9, 0, 0, 0, 0],                           // jmp with operand size
        &[0xcc, RET],                                        // int3
    ];
    for code in refused {
        stays(code, Why::RefusedByKernel);
        assert!(!choose(code, Machine::X86_64).reason.is_attachable());
    }
    stays(&[0x41, 0x90, RET], Why::MisreadByKernel);
    // The same instruction is no obstacle where the probe goes elsewhere.
    emulates(&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x55], 10, Emulated::Push);
    assert!(choose(&[RET], Machine::X86_64).reason.is_attachable());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn arbitrary_bytes_give_an_instruction_in_the_code(
        bytes in prop::collection::vec(any::<u8>(), 0..96),
    ) {
        fuzz_prologue(&bytes);
        for machine in [Machine::Aarch64, Machine::Other(0)] {
            prop_assert_eq!(choose(&bytes, machine).offset, 0);
        }
    }

    /// The same on bytes that often make prologues.
    #[test]
    fn likely_bytes_give_an_instruction_in_the_code(
        parts in prop::collection::vec(prop::sample::select(vec![
            &ENDBR64[..], &PUSH_RBP, &[0x85, 0xff], &[0x74, 0xfa], &[0xeb, 0xf4], &[0x90], &[RET],
            &[0x81, 0x3d], &[0x0f, 0x1f, 0x44, 0, 0], &[0x2e], &[0x66], &[0x41], &[0xe8, 0, 0],
        ]), 0..16),
        reach in 0_usize..48,
    ) {
        let code = parts.concat();
        fuzz_prologue(&code);
        let point = choose_within(&code, reach, Machine::X86_64);
        prop_assert!(point.offset == 0 || (point.offset as usize) < reach);
    }
}
