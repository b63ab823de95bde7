//! Which processes are wanted.

use std::collections::HashSet;

use glob::Pattern;

use super::{
    container::{self, Container, Wanted},
    listeners::listeners,
    process::{self, Program, is_cuda_driver},
};

/// What the user asked for. A process is wanted when any of the selectors names it; its forked
/// children are followed.
#[derive(Clone, Debug, Default)]
pub struct Selectors {
    /// Processes by id.
    pub pids: Vec<u32>,
    /// Executables: a pattern with a slash is held against the whole path, one without against the
    /// file name.
    pub exes: Vec<Pattern>,
    /// Whoever listens on these ports.
    pub ports: Vec<u16>,
    /// Whoever is in these containers.
    pub containers: Vec<Wanted>,
    /// Whoever maps the CUDA driver.
    pub cuda: bool,
}

impl Selectors {
    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.pids.is_empty() && self.only_pids()
    }

    /// Whether processes are wanted by their ids alone, so that nobody else can come.
    pub fn only_pids(&self) -> bool {
        let later = self.exes.is_empty() && self.ports.is_empty() && self.containers.is_empty();
        later && !self.cuda
    }

    /// Whether a process can become wanted by what it begins to run.
    pub fn want_execs(&self) -> bool {
        !self.exes.is_empty() || !self.containers.is_empty()
    }

    /// Whether the container is wanted.
    pub fn wants_container(&self, container: &Container) -> bool {
        self.containers.iter().any(|wanted| container.is(wanted))
    }

    /// Whether the executable is wanted.
    pub fn wants_program(&self, program: &Program) -> bool {
        let name = program.exe.rsplit('/').next().unwrap_or(&program.exe);
        self.exes.iter().any(|pattern| {
            pattern.matches(if pattern.as_str().contains('/') { &program.exe } else { name })
        })
    }

    /// Whether a process that runs now is wanted for its program, its container or its libraries.
    pub fn wants(&self, pid: u32) -> bool {
        if self.pids.contains(&pid) {
            return true;
        }
        if !self.exes.is_empty() && process::program(pid).is_some_and(|p| self.wants_program(&p)) {
            return true;
        }
        if !self.containers.is_empty()
            && container::of(pid).is_ok_and(|container| self.wants_container(&container))
        {
            return true;
        }
        self.cuda && process::mapped(pid, is_cuda_driver).is_ok_and(|files| !files.is_empty())
    }

    /// Processes that are wanted now and their children, without this one.
    pub fn running(&self) -> Vec<u32> {
        let me = std::process::id();
        let mut found = self.pids.clone();
        if self.want_execs() || self.cuda {
            found.extend(process::all_pids().into_iter().filter(|pid| self.wants(*pid)));
        }
        found.extend(process::holders(&self.listening()));
        found.extend(process::descendants(&found));
        found.retain(|pid| *pid != me && process::exists(*pid));
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Inodes of the sockets that listen on a wanted port, in this network namespace.
    pub fn listening(&self) -> HashSet<u64> {
        if self.ports.is_empty() {
            return HashSet::new();
        }
        listeners(&self.ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_or_paths() {
        let program = Program { exe: "/usr/bin/python3.11".into(), comm: "python3".into() };
        let wants = |pattern: &str| {
            Selectors { exes: vec![Pattern::new(pattern).unwrap()], ..Selectors::default() }
                .wants_program(&program)
        };
        assert!(wants("python3*"));
        assert!(wants("/usr/bin/*"));
        assert!(!wants("python2*"));
        assert!(!wants("bin/*"));
    }
}
