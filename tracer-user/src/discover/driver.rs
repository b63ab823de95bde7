//! From a library file to the list of places where its wanted functions are probed.
//!
//! One plan per library *file*: the same file mapped by many processes has the same offsets.

use std::collections::BTreeMap;

use super::attach_point::{self, AttachPoint, AttachReason, MAX_BODY, Why};
use super::elf::{self, ElfError, Function, Functions, Machine, Skipped, Tables};

/// Most bytes of function bodies searched in one plan. A driver's wanted functions have some
/// 20 kB together; a file made to keep us busy claims the same bytes for many functions.
const MAX_SEARCHED: usize = 64 * 1024 * 1024;

/// One place to probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The wanted function's name without version suffix.
    pub symbol: String,
    /// Other names of the same function in the file, wanted or not: a call by any of them hits
    /// this site.
    pub aliases: Vec<String>,
    /// Offset in the file of the function's first byte.
    pub function_offset: u64,
    /// Offset in the file of the instruction to probe.
    pub attach_offset: u64,
    /// Why there.
    pub reason: AttachReason,
}

/// Counts that belong in the coverage report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlanStats {
    /// Functions in the file's symbol table, aliases counted singly.
    pub exports: usize,
    /// Of these, how many names were wanted.
    pub wanted: usize,
    /// Places to probe: wanted functions, aliases counted once.
    pub sites: usize,
    /// Sites by the reason for their place.
    pub by_reason: BTreeMap<AttachReason, usize>,
    /// Symbols left out.
    pub skipped: Skipped,
}

/// Where to probe one library file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryPlan {
    /// Instruction set of the file.
    pub machine: Machine,
    /// The linker's build id, where the file has one.
    pub build_id: Option<Vec<u8>>,
    /// The loader's name of the library, where the file has one.
    pub soname: Option<String>,
    /// In the order of the symbol table.
    pub sites: Vec<Site>,
    /// Counts.
    pub stats: PlanStats,
}

/// Plans the probes on the exported functions whose name is `wanted`. A name that the file lacks
/// is no error: compare with [`LibraryPlan::sites`].
///
/// # Errors
/// When the file is no usable ELF file or exports nothing.
pub fn plan(elf: &[u8], wanted: &dyn Fn(&str) -> bool) -> Result<LibraryPlan, ElfError> {
    plan_in(elf, Tables::Exported, wanted)
}

/// As [`plan`], on the functions of the given symbol tables.
///
/// # Errors
/// When the file is no usable ELF file or has no such table.
pub fn plan_in(
    elf: &[u8],
    tables: Tables,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<LibraryPlan, ElfError> {
    let functions = elf::functions(elf, tables)?;
    let (sites, wanted_names) = Planner::new(elf, &functions).sites(wanted);
    let mut by_reason = BTreeMap::new();
    for site in &sites {
        *by_reason.entry(site.reason).or_default() += 1;
    }
    Ok(LibraryPlan {
        machine: functions.machine,
        build_id: elf::build_id(elf),
        soname: elf::soname(elf),
        stats: PlanStats {
            exports: functions.list.len(),
            wanted: wanted_names,
            sites: sites.len(),
            by_reason,
            skipped: functions.skipped,
        },
        sites,
    })
}

struct Planner<'elf, 'a> {
    elf: &'elf [u8],
    functions: &'a Functions<'elf>,
    /// File offsets of all functions, ascending.
    starts: Vec<u64>,
    /// Bytes that may still be searched.
    budget: usize,
}

impl<'elf, 'a> Planner<'elf, 'a> {
    fn new(elf: &'elf [u8], functions: &'a Functions<'elf>) -> Self {
        let mut starts: Vec<u64> = functions.list.iter().map(|f| f.file_offset).collect();
        starts.sort_unstable();
        starts.dedup();
        Self { elf, functions, starts, budget: MAX_SEARCHED }
    }

    /// One site for each address with a wanted name, and how many names were wanted.
    fn sites(mut self, wanted: &dyn Fn(&str) -> bool) -> (Vec<Site>, usize) {
        let mut sites: Vec<Site> = Vec::new();
        let mut index = BTreeMap::new();
        let mut wanted_names = 0;
        for function in self.functions.list.iter().filter(|f| wanted(f.name)) {
            wanted_names += 1;
            index.entry(function.file_offset).or_insert_with(|| {
                let point = self.choose(function);
                sites.push(Site {
                    symbol: function.name.to_owned(),
                    aliases: Vec::new(),
                    function_offset: function.file_offset,
                    attach_offset: function.file_offset.saturating_add(point.offset),
                    reason: point.reason,
                });
                sites.len() - 1
            });
        }
        for function in &self.functions.list {
            let site = index.get(&function.file_offset).and_then(|&i| sites.get_mut(i));
            let Some(site) = site else { continue };
            if site.symbol != function.name {
                site.aliases.push(function.name.to_owned());
            }
        }
        for site in &mut sites {
            site.aliases.sort_unstable();
            site.aliases.dedup();
        }
        (sites, wanted_names)
    }

    fn choose(&mut self, function: &Function<'_>) -> AttachPoint {
        let next = self.starts.partition_point(|&start| start <= function.file_offset);
        let gap = self.starts.get(next).map(|&start| start - function.file_offset);
        let gap = gap.unwrap_or(function.room);
        let length = if function.size > 0 { function.size } else { gap };
        // One byte more than is searched, so that a longer body is seen to be longer.
        let length = to_usize(length.min(function.room)).min(MAX_BODY + 1);
        let start = to_usize(function.file_offset);
        let code = self.elf.get(start..start.saturating_add(length)).unwrap_or_default();
        match self.budget.checked_sub(length) {
            Some(budget) => {
                self.budget = budget;
                attach_point::choose_within(code, to_usize(gap), self.functions.machine)
            }
            None => attach_point::entry_of(code, Why::BudgetSpent),
        }
    }
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Fuzzing entry: plans everything in the file; every site is inside the file.
#[doc(hidden)]
pub fn fuzz_elf(data: &[u8]) {
    for tables in [Tables::Exported, Tables::All] {
        let Ok(plan) = plan_in(data, tables, &|_| true) else { continue };
        for site in &plan.sites {
            assert!(site.attach_offset >= site.function_offset, "{site:?}");
            assert!(site.attach_offset < data.len() as u64, "{site:?}");
        }
        assert_eq!(plan.stats.by_reason.values().sum::<usize>(), plan.stats.sites);
    }
}

#[cfg(test)]
mod tests;
