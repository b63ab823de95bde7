//! Attaching the CUDA probes to the library files that targets map.

use std::{collections::HashMap, path::Path};

use aya::programs::{
    ProgramError, UProbe,
    uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLinkId, UProbeScope},
};
use tracer_ebpf::wire::cuda_api::{APIS, ApiInfo, Take, cookie};

use super::{ProbeError, Probes, UprobeMode};
use crate::discover::driver::LibraryPlan;

/// A file, whatever its name: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LibraryKey {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// Sites hooked and sites that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Hooked.
    pub hooked: u32,
    /// Exist in the file.
    pub exist: u32,
}

/// Libraries attached so far; their links live in the programs until those are dropped.
#[derive(Default)]
pub(super) struct Libraries {
    links: HashMap<LibraryKey, Vec<(&'static str, UProbeLinkId)>>,
}

/// Entry of launches, entry of the others, return of the others.
pub(super) fn programs(mode: UprobeMode) -> [&'static str; 3] {
    match mode {
        UprobeMode::Multi => ["cuda_launch", "cuda_enter", "cuda_return"],
        UprobeMode::Perf => ["cuda_launch_perf", "cuda_enter_perf", "cuda_return_perf"],
    }
}

/// The traced function that a symbol is a variant of, and whether it is one of the
/// per-thread-default-stream variants (`_ptsz`, `_ptds`).
pub fn api_of(symbol: &str) -> Option<(&'static ApiInfo, bool)> {
    let plain = symbol.strip_suffix("_ptsz").or_else(|| symbol.strip_suffix("_ptds"));
    let per_thread = plain.is_some();
    let plain = plain.unwrap_or(symbol);
    let base = match plain.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => plain,
    };
    APIS.iter().find(|info| info.name == base).map(|info| (info, per_thread))
}

/// Whether calls of the function are launches, which are probed at entry alone.
pub fn is_launch(info: &ApiInfo) -> bool {
    matches!(info.take, Take::LaunchStack | Take::LaunchConfig)
}

impl Probes {
    /// Whether the file's probes are attached already.
    pub fn is_attached(&self, key: LibraryKey) -> bool {
        self.attached.links.contains_key(&key)
    }

    /// Attaches to the planned sites of a library file, given by any path that reaches it. They
    /// fire for every process that maps it; the gate in the kernel lets only targets through.
    ///
    /// # Errors
    /// Where the kernel refuses; nothing of the file is attached then.
    pub fn attach_library(
        &mut self,
        key: LibraryKey,
        path: &Path,
        plan: &LibraryPlan,
    ) -> Result<Coverage, ProbeError> {
        let mut launch = Vec::new();
        let mut entry = Vec::new();
        let mut exits = Vec::new();
        for site in &plan.sites {
            let Some((info, per_thread)) = api_of(&site.symbol) else { continue };
            let point = UProbeAttachPoint {
                location: UProbeAttachLocation::AbsoluteOffset(site.attach_offset),
                cookie: Some(cookie(info, per_thread)),
            };
            if is_launch(info) {
                launch.push(point);
            } else {
                entry.push(point);
                exits.push(point);
            }
        }
        let exist = (launch.len() + entry.len()) as u32;
        let mut coverage = Coverage { hooked: 0, exist };
        let [launch_program, entry_program, return_program] = programs(self.mode);
        // Returns first: a call that is entered under the entry probe must find its return probed.
        let steps = [
            (return_program, exits, false),
            (entry_program, entry, true),
            (launch_program, launch, true),
        ];
        for (name, points, counts) in steps {
            if points.is_empty() {
                continue;
            }
            let sites = points.len() as u32;
            let attached = self.uprobe(name)?.attach(points, path, UProbeScope::AllProcesses);
            match attached {
                Ok(link) => self.attached.links.entry(key).or_default().push((name, link)),
                Err(error) => {
                    self.detach_library(key);
                    return Err(ProbeError::Program { program: name, error });
                }
            }
            if counts {
                coverage.hooked += sites;
            }
        }
        Ok(coverage)
    }

    /// Takes the probes of every file away; they can be attached again.
    pub fn detach_libraries(&mut self) {
        let keys: Vec<LibraryKey> = self.attached.links.keys().copied().collect();
        keys.into_iter().for_each(|key| self.detach_library(key));
    }

    /// Takes the probes of launches away, in every file. They come back with the file's others:
    /// after [`Self::detach_libraries`].
    pub fn detach_launches(&mut self) {
        let [launch_program, ..] = programs(self.mode);
        let mut launches = Vec::new();
        for links in self.attached.links.values_mut() {
            launches.extend(links.extract_if(.., |(name, _)| *name == launch_program));
        }
        self.detach(launches);
    }

    /// Takes a file's probes away: not all of them could be attached.
    fn detach_library(&mut self, key: LibraryKey) {
        let links = self.attached.links.remove(&key).unwrap_or_default();
        self.detach(links);
    }

    fn detach(&mut self, links: Vec<(&'static str, UProbeLinkId)>) {
        for (name, link) in links {
            if let Ok(program) = self.uprobe(name) {
                // A link that is gone already is what was wanted.
                let _ = program.detach(link);
            }
        }
    }

    fn uprobe(&mut self, name: &'static str) -> Result<&mut UProbe, ProbeError> {
        self.ebpf
            .program_mut(name)
            .ok_or(ProbeError::Missing(name))?
            .try_into()
            .map_err(|error: ProgramError| ProbeError::Program { program: name, error })
    }
}

#[cfg(test)]
mod tests {
    use super::api_of;
    use tracer_ebpf::wire::cuda_api::Api;

    #[test]
    fn variants_are_recognised() {
        let of = |name| api_of(name).map(|(info, per_thread)| (info.api, per_thread));
        assert_eq!(of("cuMemcpyHtoDAsync_v2_ptsz"), Some((Api::MemcpyHtoDAsync, true)));
        assert_eq!(of("cuLaunchKernel"), Some((Api::LaunchKernel, false)));
        assert_eq!(of("cuLaunchKernel_ptsz"), Some((Api::LaunchKernel, true)));
        assert_eq!(of("cuMemAlloc_v2"), Some((Api::MemAlloc, false)));
        assert_eq!(of("cuMemcpy2DUnaligned_v2"), Some((Api::Memcpy2DUnaligned, false)));
        assert_eq!(of("cuMemcpy_ptds"), Some((Api::Memcpy, true)));
        assert_eq!(of("cuInit"), None);
        assert_eq!(of("cuMemAlloc_vv"), None);
    }
}
