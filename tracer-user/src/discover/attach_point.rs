//! Where in a function a probe is cheapest while the arguments are still readable.
//!
//! A uprobe replaces an instruction by a trap. Afterwards the kernel must do what the replaced
//! instruction would have done: most of them it single-steps out of line (a second trap), a few
//! it *emulates* in C. On a 6.18 kernel in a virtual machine, one call costs 5 to 7 µs more with
//! a single-stepped instruction and 0.3 to 0.8 µs more with an emulated one, so the choice of
//! instruction matters more than anything the program at the probe does.
//!
//! # What x86-64 kernels emulate (`arch/x86/kernel/uprobes.c`)
//!
//! | instruction | bytes | kernels |
//! |---|---|---|
//! | push of a 64-bit register | `50..57`, `41 50..57` | since 4.18 or earlier, no other prefix |
//! | jump | `eb`, `e9` | all |
//! | conditional jump | `70..7f`, `0f 80..8f` | all |
//! | call, relative | `e8` | all |
//! | nop, one byte | `90` | all |
//! | nop, 3 to 9 bytes | `[66] 0f 1f …` | since 6.16, single-stepped before |
//!
//! Not emulated: `endbr64` (opcode `0f 1e`, not among the kernel's nops; measured single-stepped
//! on 6.18), `cmp`, `mov`, `sub`, every indirect jump or call, `ret`, `loop` and `jrcxz`.
//! Refused altogether: any instruction with an `es`, `cs`, `ss`, `ds` or `lock` prefix, a branch
//! with a `66` prefix, `int3`; before 6.2 also `66 90`. **The refusal is silent** when no process
//! has the file mapped yet: the probe attaches and never fires. Misread: a `90` with REX.B (an
//! exchange with `r8`) is emulated as a nop, measured on 6.18, which would change the program.
//!
//! # The choice
//!
//! The first instruction that every kernel emulates, if all before it are harmless: they run
//! straight on, write nothing but flags, `r10` and `r11` (both scratch at a function's entry in
//! the System V ABI), and may read memory. Then argument registers, `rax`, stack pointer, return
//! address and memory are what they were at entry. If there is none, a longer nop reached the
//! same way (cheap on new kernels, as dear as the entry on old ones). Otherwise the entry itself.
//!
//! A call is taken only at the entry itself: with a user shadow stack, kernels that do not push
//! the emulated return address onto it would break the program, and the entry costs only time.
//!
//! A chosen point behind the entry must not be reached a second time within one call, so the
//! whole function is searched for branches into the bytes between. Branches from other functions
//! and indirect jumps are not searched: compilers do not send them into the first basic block.

use std::fmt;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    Register,
};

use super::elf::Machine;

/// Instructions looked at before giving up; real prologues decide within three.
const MAX_PROLOGUE: usize = 8;

/// Longest function, in bytes, that is searched for branches back into its prologue.
pub const MAX_BODY: usize = 64 * 1024;

/// A nominal address for the function's first byte, so that targets before it stay positive and
/// differ from 0, which the decoder reports for indirect branches.
const BASE: u64 = 1 << 32;

/// Where to put the probe of one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachPoint {
    /// Bytes after the function's first byte.
    pub offset: u64,
    /// Why there.
    pub reason: AttachReason,
}

impl AttachPoint {
    /// The function's first byte, because of `why`.
    #[must_use]
    pub fn entry(why: Why) -> Self {
        Self { offset: 0, reason: AttachReason::Entry(why) }
    }
}

/// Why a probe sits where it does; tells the cost of a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttachReason {
    /// The kernel emulates the instruction at the point.
    Emulated(Emulated),
    /// At the first byte, for want of a better point: most likely single-stepped.
    Entry(Why),
}

impl AttachReason {
    /// False where the kernel would refuse or misread the instruction: attach nothing there.
    #[must_use]
    pub fn is_attachable(self) -> bool {
        !matches!(self, Self::Entry(Why::RefusedByKernel | Why::MisreadByKernel))
    }
}

/// The kind of instruction that the kernel emulates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Emulated {
    /// `push` of a 64-bit register.
    Push,
    /// `jcc`, short or near.
    ConditionalJump,
    /// `jmp`, short or near, direct.
    Jump,
    /// `call`, direct; only at the function's first byte.
    Call,
    /// One-byte nop.
    Nop,
    /// A nop of 3 to 9 bytes, emulated since kernel 6.16.
    LongNop,
}

/// Why the probe stays at the function's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// Only x86-64 prologues are decoded.
    OtherMachine,
    /// No bytes of the function are in the file.
    NoCode,
    /// The bytes end or are no instruction before an emulated one.
    Undecodable,
    /// A register that may hold an argument, or one to be preserved, is written first.
    WritesRegister,
    /// Memory is written first.
    WritesMemory,
    /// Control may leave the straight line first.
    ControlFlow,
    /// An instruction comes first that is not on the list of harmless ones.
    OtherInstruction,
    /// Too many harmless instructions come first.
    LongPrologue,
    /// Another function starts before an emulated instruction.
    AnotherFunction,
    /// A branch in the function leads back to the point: one call could count twice.
    BranchTarget,
    /// The function is longer than [`MAX_BODY`], so such a branch cannot be excluded.
    LongBody,
    /// The file has more code than is searched in one plan.
    BudgetSpent,
    /// The kernel refuses to probe the first instruction, possibly without an error.
    RefusedByKernel,
    /// The kernel takes the first instruction for another one.
    MisreadByKernel,
}

impl fmt::Display for AttachReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Emulated(Emulated::Push) => "emulated push",
            Self::Emulated(Emulated::ConditionalJump) => "emulated conditional jump",
            Self::Emulated(Emulated::Jump) => "emulated jump",
            Self::Emulated(Emulated::Call) => "emulated call",
            Self::Emulated(Emulated::Nop) => "emulated nop",
            Self::Emulated(Emulated::LongNop) => "long nop, emulated since kernel 6.16",
            Self::Entry(why) => return write!(f, "entry: {why}"),
        })
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherMachine => "not x86-64",
            Self::NoCode => "no code in the file",
            Self::Undecodable => "bytes that do not decode",
            Self::WritesRegister => "a register is written first",
            Self::WritesMemory => "memory is written first",
            Self::ControlFlow => "control may leave first",
            Self::OtherInstruction => "an instruction not known to be harmless comes first",
            Self::LongPrologue => "no emulated instruction near",
            Self::AnotherFunction => "another function starts first",
            Self::BranchTarget => "a branch leads back to the better point",
            Self::LongBody => "too long to exclude a branch back to the better point",
            Self::BudgetSpent => "too much code in the file to search all of it",
            Self::RefusedByKernel => "the kernel refuses to probe this instruction",
            Self::MisreadByKernel => "the kernel misreads this instruction",
        })
    }
}

/// Chooses the attach point of the function whose bytes are `code`, from its first byte to its
/// last. Never fails: the worst answer is the entry, with the reason.
#[must_use]
pub fn choose(code: &[u8], machine: Machine) -> AttachPoint {
    choose_within(code, code.len(), machine)
}

/// As [`choose`], but the point must lie in the first `reach` bytes: where another function
/// starts inside this one, its calls must not be counted as this one's.
#[must_use]
pub fn choose_within(code: &[u8], reach: usize, machine: Machine) -> AttachPoint {
    if machine != Machine::X86_64 {
        return AttachPoint::entry(Why::OtherMachine);
    }
    match first_emulated(code, reach) {
        Ok((0, kind)) => AttachPoint { offset: 0, reason: AttachReason::Emulated(kind) },
        Ok((offset, kind)) => match reached_again(code, offset) {
            Some(why) => entry_of(code, why),
            None => AttachPoint { offset: offset as u64, reason: AttachReason::Emulated(kind) },
        },
        Err(why) => entry_of(code, why),
    }
}

/// The entry, for `why`, unless probing the first instruction would be refused or do harm.
pub(super) fn entry_of(code: &[u8], why: Why) -> AttachPoint {
    AttachPoint::entry(trouble_at_entry(code).unwrap_or(why))
}

/// The first emulated instruction behind harmless ones: its offset and kind.
fn first_emulated(code: &[u8], reach: usize) -> Result<(usize, Emulated), Why> {
    if code.is_empty() {
        return Err(Why::NoCode);
    }
    let mut walk = Walk::new(code);
    let mut info = InstructionInfoFactory::new();
    let mut long_nop = None;
    let mut stopped_by = Why::LongPrologue;
    for _ in 0..MAX_PROLOGUE {
        if walk.offset() >= reach {
            stopped_by = if reach < code.len() { Why::AnotherFunction } else { Why::Undecodable };
            break;
        }
        let Some((offset, bytes, instruction)) = walk.next() else {
            stopped_by = Why::Undecodable;
            break;
        };
        match emulated(bytes) {
            Some(Emulated::Call) if offset > 0 => {}
            Some(Emulated::LongNop) => long_nop = long_nop.or(Some(offset)),
            Some(kind) => return Ok((offset, kind)),
            None => {}
        }
        if let Err(why) = is_harmless(&instruction, &mut info) {
            stopped_by = why;
            break;
        }
    }
    long_nop.map(|offset| (offset, Emulated::LongNop)).ok_or(stopped_by)
}

/// What every kernel emulates (long nops: newer ones), from the instruction's own bytes, so that
/// no prefix can slip in unseen.
fn emulated(bytes: &[u8]) -> Option<Emulated> {
    match bytes {
        [0x50..=0x57] | [0x41, 0x50..=0x57] => Some(Emulated::Push),
        [0x70..=0x7f, _] | [0x0f, 0x80..=0x8f, _, _, _, _] => Some(Emulated::ConditionalJump),
        [0xeb, _] | [0xe9, _, _, _, _] => Some(Emulated::Jump),
        [0xe8, _, _, _, _] => Some(Emulated::Call),
        [0x90] => Some(Emulated::Nop),
        // The kernel compares with its own table of nops, so only these exact bytes count.
        [0x0f, 0x1f, 0x00]
        | [0x0f, 0x1f, 0x40, 0]
        | [0x0f, 0x1f, 0x44, 0, 0]
        | [0x66, 0x0f, 0x1f, 0x44, 0, 0]
        | [0x0f, 0x1f, 0x80, 0, 0, 0, 0]
        | [0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]
        | [0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0] => Some(Emulated::LongNop),
        _ => None,
    }
}

/// Does everything a probe reads look the same after this instruction as before it?
fn is_harmless(instruction: &Instruction, info: &mut InstructionInfoFactory) -> Result<(), Why> {
    if instruction.flow_control() != FlowControl::Next {
        return Err(Why::ControlFlow);
    }
    let info = info.info(instruction);
    let scratch = |register: Register| matches!(register, Register::R10 | Register::R11);
    if info
        .used_registers()
        .iter()
        .any(|used| is_write(used.access()) && !scratch(used.register().full_register()))
    {
        return Err(Why::WritesRegister);
    }
    if info.used_memory().iter().any(|used| is_write(used.access())) {
        return Err(Why::WritesMemory);
    }
    // The decoder's account leaves out x87, control and shadow-stack state: name what is known.
    match instruction.mnemonic() {
        Mnemonic::Cmp
        | Mnemonic::Test
        | Mnemonic::Bt
        | Mnemonic::Mov
        | Mnemonic::Movzx
        | Mnemonic::Movsx
        | Mnemonic::Movsxd
        | Mnemonic::Lea
        | Mnemonic::Add
        | Mnemonic::Sub
        | Mnemonic::And
        | Mnemonic::Or
        | Mnemonic::Xor
        | Mnemonic::Nop
        | Mnemonic::Endbr64 => Ok(()),
        _ => Err(Why::OtherInstruction),
    }
}

fn is_write(access: OpAccess) -> bool {
    match access {
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => {
            true
        }
        OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess => false,
    }
}

/// Can one call of the function pass `offset` twice, as far as a linear decoding can tell?
fn reached_again(code: &[u8], offset: usize) -> Option<Why> {
    if code.len() > MAX_BODY {
        return Some(Why::LongBody);
    }
    let between = BASE + 1..=BASE + offset as u64;
    let mut decoder = decoder(code)?;
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        // Bytes that are no instruction (data between code) are stepped over by the decoder.
        decoder.decode_out(&mut instruction);
        if between.contains(&instruction.near_branch_target()) {
            return Some(Why::BranchTarget);
        }
    }
    None
}

/// Why the kernel must not be asked to probe the first instruction, if so.
fn trouble_at_entry(code: &[u8]) -> Option<Why> {
    let (_, bytes, _) = Walk::new(code).next()?;
    let is_prefix =
        |byte: &&u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    let (prefixes, rest) = bytes.split_at(bytes.iter().take_while(is_prefix).count());
    if prefixes.iter().any(|prefix| matches!(prefix, 0x26 | 0x2e | 0x36 | 0x3e | 0xf0)) {
        return Some(Why::RefusedByKernel);
    }
    let short_operands = prefixes.contains(&0x66);
    match rest {
        [0xcc, ..] => Some(Why::RefusedByKernel),
        [0xe8 | 0xe9 | 0xeb | 0x70..=0x7f, ..] | [0x0f, 0x80..=0x8f, ..] if short_operands => {
            Some(Why::RefusedByKernel)
        }
        [rex @ 0x40..=0x4f, 0x90, ..] if rex & 1 == 1 => Some(Why::MisreadByKernel),
        _ => None,
    }
}

fn decoder(code: &[u8]) -> Option<Decoder<'_>> {
    Decoder::try_with_ip(64, code, BASE, DecoderOptions::NONE).ok()
}

/// Steps through code, one whole instruction at a time, until something does not decode.
struct Walk<'code> {
    code: &'code [u8],
    decoder: Option<Decoder<'code>>,
}

impl<'code> Walk<'code> {
    fn new(code: &'code [u8]) -> Self {
        Self { code, decoder: decoder(code) }
    }

    /// Bytes from the function's first to the next instruction's first.
    fn offset(&self) -> usize {
        self.decoder.as_ref().map_or(0, Decoder::position)
    }

    /// The next instruction: its offset, its bytes, and what it is.
    fn next(&mut self) -> Option<(usize, &'code [u8], Instruction)> {
        let decoder = self.decoder.as_mut()?;
        let start = decoder.position();
        let instruction = decoder.decode();
        let bytes = self.code.get(start..decoder.position())?;
        if instruction.is_invalid() { None } else { Some((start, bytes, instruction)) }
    }
}

/// Fuzzing entry: every answer lies in the code, at the start of an instruction.
#[doc(hidden)]
pub fn fuzz_prologue(data: &[u8]) {
    let point = choose(data, Machine::X86_64);
    let mut walk = Walk::new(data);
    while (walk.offset() as u64) < point.offset {
        assert!(walk.next().is_some(), "{point:?} lies behind undecodable bytes");
    }
    assert_eq!(walk.offset() as u64, point.offset, "not the start of an instruction");
    assert!(point.offset == 0 || (point.offset as usize) < data.len());
}

#[cfg(test)]
mod tests;
