//! Modules: images of which only the names matter, and the functions found in them.

use std::collections::HashMap;
use std::ffi::CStr;

use crate::abi::Handle;
use crate::error::{INVALID_IMAGE, Res};

/// A loaded module; a library is one too.
pub struct Module {
    /// 0 for a library, which belongs to no context.
    pub ctx: Handle,
    /// Entry names, or `None` if the image is binary: then any name is found.
    pub entries: Option<Vec<String>>,
    /// Sizes of global variables, by name.
    pub globals: HashMap<String, u64>,
    /// Where variables asked for live.
    pub placed: HashMap<String, u64>,
    /// Functions handed out, by name.
    pub functions: HashMap<String, Handle>,
}

/// A function or kernel.
pub struct Function {
    pub ctx: Handle,
    pub module: Handle,
    pub name: &'static CStr,
    pub text: &'static str,
    /// Takes its duration as first argument.
    pub busy: bool,
    /// Code is loaded at the first launch.
    pub loaded: bool,
    pub attributes: HashMap<i32, i32>,
}

/// Kernels whose names start so say themselves how long they run.
pub const BUSY_PREFIX: &str = "cudasim_busy";

/// What is known of an image.
pub struct Image {
    pub entries: Option<Vec<String>>,
    pub globals: HashMap<String, u64>,
    pub bytes: u64,
}

const FATBIN_WRAPPER: u32 = 0x4662_43b1;
const FATBIN: u32 = 0xba55_ed50;
const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");

/// Reads an image in memory: PTX text, ELF (cubin) or fat binary.
pub fn read_image(at: *const u8) -> Res<Image> {
    if at.is_null() {
        return Err(INVALID_IMAGE);
    }
    let mut magic = [0; 4];
    for (i, byte) in magic.iter_mut().enumerate() {
        // SAFETY: binary images are longer, and text is not read past the null byte that ends it.
        *byte = unsafe { at.add(i).read() };
        if *byte == 0 {
            break;
        }
    }
    if matches!(u32::from_le_bytes(magic), ELF | FATBIN | FATBIN_WRAPPER) {
        return Ok(Image { entries: None, globals: HashMap::new(), bytes: 0 });
    }
    // SAFETY: not binary, so it is text, which the C caller terminates.
    let text = unsafe { CStr::from_ptr(at.cast()) };
    parse_ptx(&text.to_string_lossy())
}

/// Reads an image from a file's contents.
pub fn read_file_image(mut contents: Vec<u8>) -> Res<Image> {
    contents.extend_from_slice(&[0; 4]);
    read_image(contents.as_ptr())
}

/// Finds entries and variables in PTX text.
fn parse_ptx(text: &str) -> Res<Image> {
    let mut entries = Vec::new();
    let mut globals = HashMap::new();
    let plain = without_comments(text);
    if !plain.contains(".version") && !plain.contains(".entry") {
        return Err(INVALID_IMAGE);
    }
    for (at, _) in plain.match_indices(".entry") {
        if let Some(name) = plain.get(at + 6..).and_then(identifier) {
            entries.push(name.to_owned());
        }
    }
    for space in [".global", ".const"] {
        for (at, _) in plain.match_indices(space) {
            let rest = plain.get(at + space.len()..).unwrap_or_default();
            let declared = rest.split([';', '=', '{']).next().unwrap_or_default();
            if let Some((name, size)) = variable(declared) {
                globals.insert(name, size);
            }
        }
    }
    Ok(Image { entries: Some(entries), globals, bytes: text.len() as u64 })
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        let (before, comment) = rest.split_at(at);
        out.push_str(before);
        out.push(' ');
        let end = if comment.starts_with("/*") {
            comment.find("*/").map(|e| e + 2)
        } else {
            comment.find('\n')
        };
        rest = comment.get(end.unwrap_or(comment.len())..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// The identifier that text starts with, after white space.
fn identifier(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')))
        .unwrap_or(text.len());
    text.get(..end).filter(|n| !n.is_empty())
}

/// Name and size of a variable: ` .align 4 .b8 name[16]`. Instructions have no type first.
fn variable(declared: &str) -> Option<(String, u64)> {
    let mut element = None;
    let mut name = None;
    for word in declared.split_whitespace() {
        if let Some(kind) = word.strip_prefix('.') {
            let bits = kind.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse::<u64>();
            element = bits.ok().filter(|b| [8, 16, 32, 64].contains(b)).map(|b| b / 8);
        } else if !word.starts_with(|c: char| c.is_ascii_digit()) {
            name = Some(word);
        }
    }
    let name = name?;
    let count: u64 = name
        .split('[')
        .skip(1)
        .map(|d| d.trim_end_matches(']').parse::<u64>().unwrap_or(1))
        .product();
    Some((identifier(name)?.to_owned(), element? * count))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "
// .entry commented(
.version 8.0
.target sm_90 /* .entry neither( */
.global .align 4 .b8 table[16];
.const .f32 scale = 1.5;
.visible .entry cudasim_busy(.param .u64 ns)
{ ld.global.u32 %r1, [%rd1]; ret; }
.visible .entry
  _Z6vecAddPf (
  .param .u64 p
) { ret; }
";

    #[test]
    fn finds_entries_and_variables() {
        let image = parse_ptx(PTX).unwrap();
        assert_eq!(image.entries.unwrap(), ["cudasim_busy", "_Z6vecAddPf"]);
        assert_eq!(image.globals.get("table"), Some(&16));
        assert_eq!(image.globals.get("scale"), Some(&4));
        assert_eq!(image.globals.len(), 2);
    }

    #[test]
    fn refuses_what_is_no_image() {
        assert!(parse_ptx("hello").is_err());
        assert!(read_image(std::ptr::null()).is_err());
        assert!(read_file_image(b"\x7fELF....".to_vec()).unwrap().entries.is_none());
        assert!(read_file_image(Vec::new()).is_err());
    }
}
