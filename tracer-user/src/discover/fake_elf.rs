//! Small ELF images for the tests of this room, written by hand so that each field can be wrong.

/// One symbol table entry.
#[derive(Clone, Copy)]
pub struct Symbol {
    pub name: &'static str,
    /// `st_info`: binding (1 global, 0 local) and type (2 function, 10 indirect function).
    pub info: u8,
    /// Section index; 0 means that the symbol is only used here.
    pub section: u16,
    pub address: u64,
    pub size: u64,
}

/// A defined, global function.
pub fn function(name: &'static str, address: u64, size: u64) -> Symbol {
    Symbol { name, info: 0x12, section: 1, address, size }
}

/// Virtual address of the first byte of code.
pub const CODE: u64 = 0x40_1000;
/// File offset of the first byte of code.
pub const CODE_AT: u64 = 0x1000;
/// Virtual address of a byte of data, in a segment that is not executable.
pub const DATA: u64 = 0x50_0000;
/// `e_machine` of x86-64.
pub const X86_64: u16 = 62;

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

fn segment(image: &mut [u8], n: usize, kind: u32, flags: u32, at: u64, address: u64, size: u64) {
    let start = 64 + n * 56;
    put(image, start, &kind.to_le_bytes());
    put(image, start + 4, &flags.to_le_bytes());
    put(image, start + 8, &at.to_le_bytes());
    put(image, start + 16, &address.to_le_bytes());
    put(image, start + 32, &size.to_le_bytes());
    put(image, start + 40, &size.to_le_bytes());
    put(image, start + 48, &4_u64.to_le_bytes());
}

fn section(image: &mut Vec<u8>, kind: u32, at: u64, size: u64, link: u32, entry: u64) {
    let mut header = vec![0; 64];
    put(&mut header, 4, &kind.to_le_bytes());
    put(&mut header, 24, &at.to_le_bytes());
    put(&mut header, 32, &size.to_le_bytes());
    put(&mut header, 40, &link.to_le_bytes());
    put(&mut header, 56, &entry.to_le_bytes());
    image.extend(header);
}

fn align(image: &mut Vec<u8>) {
    image.resize(image.len().next_multiple_of(8), 0);
}

/// A table of symbols and its names: file offset and size of each.
fn table(image: &mut Vec<u8>, symbols: &[Symbol]) -> [(u64, u64); 2] {
    let mut names = b"\0libfake.so.1\0".to_vec();
    align(image);
    let at = image.len() as u64;
    image.extend([0; 24]);
    for symbol in symbols {
        image.extend((names.len() as u32).to_le_bytes());
        image.extend([symbol.info, 0]);
        image.extend(symbol.section.to_le_bytes());
        image.extend(symbol.address.to_le_bytes());
        image.extend(symbol.size.to_le_bytes());
        names.extend(symbol.name.bytes().chain([0]));
    }
    let names_at = image.len() as u64;
    image.extend(&names);
    [(at, names_at - at), (names_at, names.len() as u64)]
}

/// A library with `code` at [`CODE`], its exports, its `.symtab` (left out when empty), build id
/// `ab cd` and soname `libfake.so.1`.
pub fn build(machine: u16, code: &[u8], exports: &[Symbol], full: &[Symbol]) -> Vec<u8> {
    let mut image = vec![0; CODE_AT as usize];
    put(&mut image, 0, b"\x7fELF\x02\x01\x01");
    put(&mut image, 16, &[3, 0]);
    put(&mut image, 18, &machine.to_le_bytes());
    put(&mut image, 20, &[1]);
    put(&mut image, 32, &64_u64.to_le_bytes());
    put(&mut image, 52, &[64, 0, 56, 0, 4, 0, 64, 0]);
    put(&mut image, 0x800, b"\x04\0\0\0\x02\0\0\0\x03\0\0\0GNU\0\xab\xcd\0\0");
    image.extend(code);
    segment(&mut image, 0, 1, 5, CODE_AT, CODE, code.len() as u64);
    segment(&mut image, 2, 4, 4, 0x800, 0x800, 20);
    let [symbols, names] = table(&mut image, exports);
    align(&mut image);
    let dynamic_at = image.len() as u64;
    for value in [5, DATA, 14, 1, 0, 0] {
        image.extend(value.to_le_bytes());
    }
    segment(&mut image, 1, 1, 6, names.0, DATA, names.1);
    segment(&mut image, 3, 2, 6, dynamic_at, 0, 48);
    let more = (!full.is_empty()).then(|| table(&mut image, full));
    align(&mut image);
    let headers_at = image.len() as u64;
    put(&mut image, 40, &headers_at.to_le_bytes());
    put(&mut image, 60, &[if more.is_some() { 5 } else { 3 }, 0]);
    section(&mut image, 0, 0, 0, 0, 0);
    section(&mut image, 11, symbols.0, symbols.1, 2, 24);
    section(&mut image, 3, names.0, names.1, 0, 0);
    if let Some([symbols, names]) = more {
        section(&mut image, 2, symbols.0, symbols.1, 4, 24);
        section(&mut image, 3, names.0, names.1, 0, 0);
    }
    image
}
