//! The links of the programs that need no target's files: what is attached can be let go and
//! attached again, while the programs stay loaded.

use aya::{
    Ebpf,
    programs::{
        RawTracePoint, TracePoint, raw_trace_point::RawTracePointLinkId,
        trace_point::TracePointLinkId,
    },
};

use super::{
    Availability, PROCESS_PROGRAMS, ProbeError, Probes, SCHED_PROGRAMS, SYSCALL_PROGRAMS,
    TCP_PROGRAMS, program,
};

/// Category and name of a tracepoint; its program has the same name.
type Point = (&'static str, &'static str);

/// What is attached.
#[derive(Default)]
pub(super) struct Links {
    syscalls: Vec<(&'static str, RawTracePointLinkId)>,
    points: Vec<(&'static str, TracePointLinkId)>,
}

impl Links {
    pub(super) fn load_syscalls(&self, ebpf: &mut Ebpf) -> Result<(), ProbeError> {
        for name in SYSCALL_PROGRAMS {
            let program: &mut RawTracePoint = program(ebpf, name)?;
            program.load().map_err(|error| ProbeError::Program { program: name, error })?;
        }
        Ok(())
    }

    pub(super) fn attach_syscalls(&mut self, ebpf: &mut Ebpf) -> Result<(), ProbeError> {
        for name in SYSCALL_PROGRAMS {
            let program: &mut RawTracePoint = program(ebpf, name)?;
            let link = program
                .attach(name)
                .map_err(|error| ProbeError::Program { program: name, error })?;
            self.syscalls.push((name, link));
        }
        Ok(())
    }

    pub(super) fn load_points(&self, ebpf: &mut Ebpf, points: &[Point]) -> Result<(), ProbeError> {
        for (_, name) in points {
            let program: &mut TracePoint = program(ebpf, name)?;
            program.load().map_err(|error| ProbeError::Program { program: name, error })?;
        }
        Ok(())
    }

    pub(super) fn attach_points(
        &mut self,
        ebpf: &mut Ebpf,
        points: &[Point],
    ) -> Result<(), ProbeError> {
        for (category, name) in points {
            let program: &mut TracePoint = program(ebpf, name)?;
            let link = program
                .attach(category, name)
                .map_err(|error| ProbeError::Program { program: name, error })?;
            self.points.push((name, link));
        }
        Ok(())
    }

    /// Attaches all tracepoints of a family, or none.
    pub(super) fn family(
        &mut self,
        ebpf: &mut Ebpf,
        points: &[Point],
        missing: Option<String>,
    ) -> Availability {
        if let Some(reason) = missing {
            return Availability::Unavailable(reason);
        }
        let attached =
            self.load_points(ebpf, points).and_then(|()| self.attach_points(ebpf, points));
        match attached {
            Ok(()) => Availability::Available,
            Err(error) => {
                self.detach_points(ebpf, points);
                for (_, name) in points {
                    // One that was not loaded yet is what was wanted.
                    let _ = program::<TracePoint>(ebpf, name).map(TracePoint::unload);
                }
                Availability::Unavailable(error.to_string())
            }
        }
    }

    fn detach_points(&mut self, ebpf: &mut Ebpf, points: &[Point]) {
        let ours = |name: &str| points.iter().any(|(_, point)| *point == name);
        for (name, link) in self.points.extract_if(.., |(name, _)| ours(name)) {
            if let Ok(program) = program::<TracePoint>(ebpf, name) {
                // A link that is gone already is what was wanted.
                let _ = program.detach(link);
            }
        }
    }

    fn detach_syscalls(&mut self, ebpf: &mut Ebpf) {
        for (name, link) in self.syscalls.drain(..) {
            if let Ok(program) = program::<RawTracePoint>(ebpf, name) {
                // As above.
                let _ = program.detach(link);
            }
        }
    }
}

impl Probes {
    /// Lets go of every probe. The programs stay loaded, and run no more.
    pub fn detach_all(&mut self) {
        self.detach_libraries();
        self.links.detach_syscalls(&mut self.ebpf);
        for points in [&SCHED_PROGRAMS, &TCP_PROGRAMS, &PROCESS_PROGRAMS] {
            self.links.detach_points(&mut self.ebpf, points);
        }
    }

    /// Attaches everything again that [`Self::detach_all`] has let go, but for libraries and, with
    /// `without_sched`, the scheduler.
    ///
    /// # Errors
    /// Where the kernel refuses; what was attached by then stays.
    pub fn attach_all(&mut self, without_sched: bool) -> Result<(), ProbeError> {
        self.links.attach_points(&mut self.ebpf, &PROCESS_PROGRAMS)?;
        self.links.attach_syscalls(&mut self.ebpf)?;
        if self.tcp == Availability::Available {
            self.links.attach_points(&mut self.ebpf, &TCP_PROGRAMS)?;
        }
        if !without_sched {
            self.attach_sched()?;
        }
        Ok(())
    }

    /// Lets go of the scheduler's tracepoints.
    pub fn detach_sched(&mut self) {
        self.links.detach_points(&mut self.ebpf, &SCHED_PROGRAMS);
    }

    /// Attaches them again, where they can be.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn attach_sched(&mut self) -> Result<(), ProbeError> {
        if self.sched != Availability::Available {
            return Ok(());
        }
        self.links.attach_points(&mut self.ebpf, &SCHED_PROGRAMS)
    }
}
