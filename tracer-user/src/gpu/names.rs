//! Names of functions, from the calls that look them up.

use std::collections::BTreeMap;

/// Function and kernel handles of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(BTreeMap<u64, Named>);

#[derive(Clone, Debug)]
struct Named {
    /// Module or library that holds the function.
    holder: u64,
    name: String,
}

impl Names {
    /// `cuModuleGetFunction`, `cuLibraryGetKernel`: `payload` is the name, terminated unless it
    /// was cut. Answers false where the cap is reached.
    pub(super) fn insert(&mut self, handle: u64, holder: u64, payload: &[u8], cap: usize) -> bool {
        let bytes = payload.split(|byte| *byte == 0).next().unwrap_or_default();
        if handle == 0 || bytes.is_empty() {
            return true;
        }
        self.put(handle, Named { holder, name: String::from_utf8_lossy(bytes).into_owned() }, cap)
    }

    /// `cuKernelGetFunction`: a second handle for a kernel.
    pub(super) fn alias(&mut self, handle: u64, kernel: u64, cap: usize) -> bool {
        match self.0.get(&kernel).cloned() {
            Some(named) if handle != 0 => self.put(handle, named, cap),
            _ => true,
        }
    }

    fn put(&mut self, handle: u64, named: Named, cap: usize) -> bool {
        if self.0.len() >= cap && !self.0.contains_key(&handle) {
            return false;
        }
        self.0.insert(handle, named);
        true
    }

    /// A module or library was unloaded.
    pub(super) fn unload(&mut self, holder: u64) {
        self.0.retain(|_, named| named.holder != holder);
    }

    pub(super) fn get(&self, handle: u64) -> Option<&str> {
        self.0.get(&handle).map(|named| named.name.as_str())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
