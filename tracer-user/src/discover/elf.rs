//! Functions of an ELF file, where they lie in the file, and the file's identity.
//!
//! A uprobe is placed at a *file offset*, so addresses are turned into offsets the way the loader
//! turns offsets into addresses: through the `PT_LOAD` program headers. Section headers serve
//! only to find the symbol tables.
//!
//! The file comes from the traced process and is not trusted: every read is checked, the work is
//! bounded by the caps below, and what is left out is counted. Parsing wants the image 8-byte
//! aligned in memory, which a mapping or a fresh `Vec` is.

use object::LittleEndian as LE;
use object::elf::{
    DT_SONAME, DT_STRTAB, Dyn64, EM_AARCH64, EM_X86_64, FileHeader64, NT_GNU_BUILD_ID, PF_X,
    PT_DYNAMIC, PT_LOAD, PT_NOTE, ProgramHeader64, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB, STB_LOCAL,
    STT_FUNC, STT_GNU_IFUNC, SectionHeader64, SectionType, Sym64,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use thiserror::Error;

/// Most symbols read from one table; the rest is counted as left out.
pub const MAX_SYMBOLS: usize = 1_000_000;
/// Longest symbol name in bytes; a longer one is counted as unnamed.
pub const MAX_NAME: usize = 1024;
/// Most program headers considered; real files have about a dozen.
const MAX_SEGMENTS: usize = 256;
/// Most entries of the dynamic section considered; real files have about forty.
const MAX_DYNAMIC: usize = 4096;
/// Most notes looked at for the build id.
const MAX_NOTES: usize = 256;
/// Longest build id in bytes; the usual one has 20.
const MAX_BUILD_ID: usize = 64;

/// Why a file's functions cannot be told.
#[derive(Debug, Error)]
pub enum ElfError {
    /// It does not begin with `\x7fELF`.
    #[error("not an ELF file")]
    NotElf,
    /// 32-bit or big-endian: not a kind of process that is traced.
    #[error("not a 64-bit little-endian ELF file")]
    UnsupportedKind,
    /// Headers or tables that contradict the file's size or each other.
    #[error("malformed ELF file: {0}")]
    Malformed(#[from] object::read::Error),
    /// Stripped of the section that lists the symbols.
    #[error("no symbol table ({0}) in the ELF file")]
    NoSymbols(&'static str),
}

/// The instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// Another one, by its `e_machine` number.
    Other(u16),
}

/// Which symbol tables to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// `.dynsym`: what a library exports.
    Exported,
    /// `.dynsym` and, where the file has it, `.symtab`: what a static binary contains. It is
    /// enough that one of the two exists.
    All,
}

/// A function defined in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function<'elf> {
    /// Its name without version suffix (`@VERS`, `@@VERS`).
    pub name: &'elf str,
    /// Virtual address of its first byte, before relocation.
    pub address: u64,
    /// Offset of its first byte in the file; lies in an executable segment.
    pub file_offset: u64,
    /// Its length in bytes as the symbol says; 0 where that is not known.
    pub size: u64,
    /// Bytes from its first one to the end of the segment's part of the file.
    pub room: u64,
}

/// Symbols left out, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skipped {
    /// `STT_GNU_IFUNC`: its address is that of a resolver which runs once, not of the function.
    pub ifunc: usize,
    /// Name missing, too long (see [`MAX_NAME`]), or not UTF-8.
    pub bad_name: usize,
    /// Address in no executable segment, or in a part of it that is not in the file.
    pub outside_code: usize,
    /// Symbols beyond [`MAX_SYMBOLS`].
    pub over_cap: usize,
}

/// The functions of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Functions<'elf> {
    /// Instruction set of the file.
    pub machine: Machine,
    /// In the order of the tables; aliases are separate entries with one address.
    pub list: Vec<Function<'elf>>,
    /// What was left out.
    pub skipped: Skipped,
}

/// The functions that a library exports: defined `STT_FUNC` symbols of `.dynsym`.
///
/// # Errors
/// When the file is no usable ELF file or has no such table.
pub fn exported_functions(elf: &[u8]) -> Result<Functions<'_>, ElfError> {
    functions(elf, Tables::Exported)
}

/// The defined functions of the given tables.
///
/// # Errors
/// When the file is no usable ELF file or has no such table.
pub fn functions(elf: &[u8], tables: Tables) -> Result<Functions<'_>, ElfError> {
    let image = Image::parse(elf)?;
    let sections = image.header.section_headers(LE, elf)?;
    let mut found =
        Functions { machine: image.machine(), list: Vec::new(), skipped: Skipped::default() };
    let dynamic = image.add_table(sections, SHT_DYNSYM, &mut found)?;
    match tables {
        Tables::Exported if !dynamic => Err(ElfError::NoSymbols(".dynsym")),
        Tables::Exported => Ok(found),
        Tables::All => {
            let full = image.add_table(sections, SHT_SYMTAB, &mut found)?;
            if dynamic || full { Ok(found) } else { Err(ElfError::NoSymbols(".dynsym or .symtab")) }
        }
    }
}

/// The linker's build id, which names the file's content; None where there is none.
#[must_use]
pub fn build_id(elf: &[u8]) -> Option<Vec<u8>> {
    let image = Image::parse(elf).ok()?;
    let notes = image.segments.iter().filter(|segment| segment.p_type(LE) == PT_NOTE);
    let mut left = MAX_NOTES;
    for segment in notes {
        let Ok(Some(mut notes)) = segment.notes(LE, elf) else { continue };
        while let (1.., Ok(Some(note))) = (left, notes.next()) {
            left -= 1;
            let is_id = note.n_type(LE) == NT_GNU_BUILD_ID && note.name() == b"GNU";
            if is_id && (1..=MAX_BUILD_ID).contains(&note.desc().len()) {
                return Some(note.desc().to_vec());
            }
        }
    }
    None
}

/// The name under which the loader knows the library (`DT_SONAME`), without regard to the file's
/// own name; None where there is none.
#[must_use]
pub fn soname(elf: &[u8]) -> Option<String> {
    let image = Image::parse(elf).ok()?;
    let segment = image.segments.iter().find(|segment| segment.p_type(LE) == PT_DYNAMIC)?;
    let entries: &[Dyn64<LE>] = segment.dynamic(LE, elf).ok()??;
    let value = |tag| {
        let entry = entries.iter().take(MAX_DYNAMIC).find(|entry| entry.d_tag.get(LE) == tag)?;
        Some(entry.d_val.get(LE))
    };
    let at = value(DT_STRTAB)?.checked_add(value(DT_SONAME)?)?;
    let (offset, _) = image.locate(at, |_| true)?;
    name_at(elf, usize::try_from(offset).ok()?).map(str::to_owned)
}

/// A checked ELF header with its program headers.
pub(super) struct Image<'elf> {
    elf: &'elf [u8],
    pub(super) header: &'elf FileHeader64<LE>,
    pub(super) segments: &'elf [ProgramHeader64<LE>],
}

impl<'elf> Image<'elf> {
    pub(super) fn parse(elf: &'elf [u8]) -> Result<Self, ElfError> {
        match elf {
            // Identification: magic, 2 for 64-bit, 1 for little-endian.
            [0x7f, b'E', b'L', b'F', 2, 1, ..] => {}
            [0x7f, b'E', b'L', b'F', _, _, ..] => return Err(ElfError::UnsupportedKind),
            _ => return Err(ElfError::NotElf),
        }
        let header = FileHeader64::<LE>::parse(elf)?;
        let all = header.program_headers(LE, elf)?;
        let segments = all.get(..MAX_SEGMENTS).unwrap_or(all);
        Ok(Self { elf, header, segments })
    }

    pub(super) fn machine(&self) -> Machine {
        match self.header.e_machine(LE) {
            EM_X86_64 => Machine::X86_64,
            EM_AARCH64 => Machine::Aarch64,
            other => Machine::Other(other.0),
        }
    }

    /// File offset of a virtual address, and the bytes of its segment in the file from there on,
    /// by the first segment that fits.
    fn locate(
        &self,
        address: u64,
        wanted: impl Fn(&ProgramHeader64<LE>) -> bool,
    ) -> Option<(u64, u64)> {
        self.segments.iter().find_map(|segment| {
            if segment.p_type(LE) != PT_LOAD || !wanted(segment) {
                return None;
            }
            let into = address.checked_sub(segment.p_vaddr(LE))?;
            let room = segment.p_filesz(LE).checked_sub(into)?;
            let offset = segment.p_offset(LE).checked_add(into)?;
            // A header may claim more than the file has.
            let room = room.min((self.elf.len() as u64).checked_sub(offset)?);
            (room > 0).then_some((offset, room))
        })
    }

    /// Adds the functions of the first table of the given kind; false when there is none.
    fn add_table(
        &self,
        sections: &[SectionHeader64<LE>],
        kind: SectionType,
        found: &mut Functions<'elf>,
    ) -> Result<bool, ElfError> {
        let Some(table) = sections.iter().find(|section| section.sh_type(LE) == kind) else {
            return Ok(false);
        };
        let symbols: &[Sym64<LE>] = table.data_as_array(LE, self.elf)?;
        let strings = match sections.get(table.sh_link(LE) as usize) {
            Some(section) => section.data(LE, self.elf)?,
            None => &[],
        };
        found.skipped.over_cap += symbols.len().saturating_sub(MAX_SYMBOLS);
        for symbol in symbols.iter().take(MAX_SYMBOLS) {
            let hidden = kind == SHT_DYNSYM && symbol.st_bind() == STB_LOCAL;
            if symbol.st_shndx(LE) == SHN_UNDEF || hidden {
                continue;
            }
            match symbol.st_type() {
                STT_FUNC => self.add_function(symbol, strings, found),
                STT_GNU_IFUNC => found.skipped.ifunc += 1,
                _ => {}
            }
        }
        Ok(true)
    }

    fn add_function(&self, symbol: &Sym64<LE>, strings: &'elf [u8], found: &mut Functions<'elf>) {
        let Some(name) = name_at(strings, symbol.st_name(LE) as usize) else {
            found.skipped.bad_name += 1;
            return;
        };
        let address = symbol.st_value(LE);
        let executable = |segment: &ProgramHeader64<LE>| segment.p_flags(LE).contains(PF_X);
        match self.locate(address, executable) {
            Some((file_offset, room)) => {
                let size = symbol.st_size(LE);
                found.list.push(Function { name, address, file_offset, size, room });
            }
            None => found.skipped.outside_code += 1,
        }
    }
}

/// The zero-terminated name at `start`, without version suffix; None when it is empty, too long,
/// unterminated or not UTF-8.
fn name_at(strings: &[u8], start: usize) -> Option<&str> {
    let rest = strings.get(start..)?;
    let window = rest.get(..=MAX_NAME).unwrap_or(rest);
    let full = window.get(..memchr::memchr(0, window)?)?;
    let name = full.get(..memchr::memchr(b'@', full).unwrap_or(full.len()))?;
    if name.is_empty() { None } else { std::str::from_utf8(name).ok() }
}

#[cfg(test)]
mod tests;
