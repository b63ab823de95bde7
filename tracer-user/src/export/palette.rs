//! Letter, colour and texture of each phase.

use crate::timeline::model::{Method, Phase, PhaseName};

use super::style::{Line, Paint, Style, wrap};

/// The letter of a phase in bars.
pub fn letter(phase: PhaseName) -> char {
    match phase {
        PhaseName::AcceptQueue => 'A',
        PhaseName::SocketWait => 'W',
        PhaseName::Receive => 'R',
        PhaseName::ThreadBusy => 'B',
        PhaseName::Queue => 'Q',
        PhaseName::Cpu => 'C',
        PhaseName::RunQueue => 'U',
        PhaseName::H2d => 'H',
        PhaseName::Kernel => 'K',
        PhaseName::D2h => 'D',
        PhaseName::Gpu => 'G',
        PhaseName::Alloc => 'M',
        PhaseName::Dependency => 'P',
        PhaseName::Lock => 'L',
        PhaseName::Io => 'I',
        PhaseName::Send => 'S',
        PhaseName::Unattributed => '.',
    }
}

/// The colour of a phase, of the 256. Waiting for a turn is orange to brown, the network teal, pink
/// and magenta, the processor light blue, the GPU blue, green and violet, allocation and locks red,
/// disks dark blue, the unknown grey. Chosen so that any two are as far apart as 17 can be.
pub fn color(phase: PhaseName) -> u8 {
    match phase {
        PhaseName::AcceptQueue => 100,
        PhaseName::SocketWait => 208,
        PhaseName::Receive => 37,
        PhaseName::ThreadBusy => 130,
        PhaseName::Queue => 178,
        PhaseName::Cpu => 75,
        PhaseName::RunQueue => 180,
        PhaseName::H2d => 27,
        PhaseName::Kernel => 28,
        PhaseName::D2h => 141,
        PhaseName::Gpu => 112,
        PhaseName::Alloc => 160,
        PhaseName::Dependency => 127,
        PhaseName::Lock => 167,
        PhaseName::Io => 24,
        PhaseName::Send => 205,
        PhaseName::Unattributed => 244,
    }
}

/// The colour of letters on a phase's colour: black, white on the dark ones.
pub fn ink(phase: PhaseName) -> u8 {
    match phase {
        PhaseName::H2d | PhaseName::Alloc | PhaseName::Dependency | PhaseName::Io => 231,
        _ => 16,
    }
}

/// Whether a phase is drawn hatched: its ends are estimated or inferred, or it is a GPU step that
/// no fact divides.
pub fn hatched(phase: &Phase) -> bool {
    match phase.method {
        Method::Estimated | Method::Inferred => true,
        Method::Observed | Method::Direct | Method::SyncBounded | Method::EventElapsed => {
            phase.phase == PhaseName::Gpu
        }
    }
}

/// A phase's letter as bars show it: small where the phase is hatched.
pub fn shown_letter(phase: PhaseName, hatched: bool) -> char {
    let letter = letter(phase);
    if hatched { letter.to_ascii_lowercase() } else { letter }
}

/// Puts a phase's letter, as it begins its part of a bar.
pub fn put_letter(line: &mut Line, phase: PhaseName, hatched: bool, style: Style) {
    let solid = style.unicode && !hatched && phase != PhaseName::Unattributed;
    let paint = if solid { Paint::OnPhase(phase) } else { Paint::Phase(phase) };
    line.put(&shown_letter(phase, hatched).to_string(), paint);
}

/// What letters, textures and marks mean.
pub fn legend(style: Style) -> String {
    let mut pieces: Vec<(String, Paint)> = PhaseName::ALL
        .into_iter()
        .map(|phase| {
            let hatched = phase == PhaseName::Gpu;
            let letter = shown_letter(phase, hatched);
            (format!("{letter} {}", phase.as_str()), Paint::Phase(phase))
        })
        .collect();
    let (hatch, least) = if style.unicode { ("▒", "≥") } else { ("~", ">") };
    pieces.push((format!("k{hatch} estimated, inferred or undivided"), Paint::Dim));
    pieces.push((format!("{least} arrival=read: timed from the read only"), Paint::Dim));
    pieces.push(("! incomplete".to_owned(), Paint::Dim));
    let mut out = String::new();
    wrap(&pieces, 0, style, &mut out);
    out
}
