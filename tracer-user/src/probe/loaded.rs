//! The eBPF programs of the whole machine, for whoever measures them.

use std::collections::HashMap;

use aya::programs::loaded_programs;

/// Names of all programs that are loaded, by their numbers (`prog_id` in `fdinfo`). The kernel keeps
/// 15 bytes of a name. Empty without the rights to ask.
pub fn program_names() -> HashMap<u32, String> {
    // One may be unloaded between the list and the look.
    loaded_programs()
        .filter_map(Result::ok)
        .map(|program| (program.id(), program.name_as_str().unwrap_or_default().to_owned()))
        .collect()
}
