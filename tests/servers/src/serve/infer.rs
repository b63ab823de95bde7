//! `/infer`: carries out a request's plan, on the host and on the thread's GPU, and streams chunks.

use std::fmt::Write as _;
use std::io;

use crate::clock::{now_ns, sleep, spin};
use crate::gpu::Gpu;
use crate::hash::fill_pattern;
use crate::http::{Request, query_value};
use crate::oracle::{Record, json_string};
use crate::plan::{Plan, Step};

use super::connection::Connection;

impl Connection<'_> {
    pub(super) fn infer(
        &mut self,
        request: &Request,
        keep: bool,
        record: &mut Record,
    ) -> io::Result<bool> {
        let text = query_value(&request.query, "plan").unwrap_or_default();
        record.plan.push_str(&text);
        let head_only = request.method == "HEAD";
        let plan = match text.parse::<Plan>() {
            Ok(plan) => plan,
            Err(bad) => {
                let text = format!("{{\"error\":{}}}\n", json_string(&bad.to_string()));
                self.body.extend_from_slice(text.as_bytes());
                self.reply(400, "application/json", keep, head_only, record)?;
                return Ok(keep);
            }
        };
        if plan.chunks().is_some() && !head_only {
            return self.stream(&plan, keep, record);
        }
        let done = self.carry_out(&plan, record);
        self.body.clear();
        let (status, kind) = match done {
            Ok(()) => match plan.response_bytes() {
                Some(bytes) => {
                    fill_pattern(&mut self.body, 0, bytes as usize);
                    (200, "application/octet-stream")
                }
                None => {
                    let text = format!("{{\"rid\":{},\"ok\":true}}\n", json_string(&record.rid));
                    self.body.extend_from_slice(text.as_bytes());
                    (200, "application/json")
                }
            },
            Err(why) => {
                let text = format!("{{\"error\":{}}}\n", json_string(&why));
                self.body.extend_from_slice(text.as_bytes());
                (500, "application/json")
            }
        };
        self.reply(status, kind, keep, head_only, record)?;
        Ok(keep)
    }

    /// The thread's GPU, ready for a plan; `None` when there is none or none is needed.
    fn gpu(&mut self, plan: &Plan, record: &mut Record) -> Result<Option<&mut Gpu>, String> {
        if !plan.needs_gpu() {
            return Ok(None);
        }
        let process = match self.server.process() {
            None => return Ok(None),
            Some(process) => process?,
        };
        let cap = self.server.config.run_cap;
        let gpu = self.gpu.get_or_insert_with(|| Gpu::new(process, cap));
        gpu.begin(plan, &mut record.cuda).map_err(|failure| failure.to_string())?;
        Ok(Some(gpu))
    }

    pub(super) fn carry_out(&mut self, plan: &Plan, record: &mut Record) -> Result<(), String> {
        let mut gpu = self.gpu(plan, record)?;
        let mut done = Ok(());
        for &step in &plan.steps {
            if !host_step(step, record)
                && let Some(gpu) = &mut gpu
                && let Err(failure) = gpu.step(step, &mut record.cuda)
            {
                done = Err(failure.to_string());
                break;
            }
        }
        if let Some(gpu) = gpu {
            let ended = gpu.end(&mut record.cuda).map_err(|failure| failure.to_string());
            done = done.and(ended);
        }
        done
    }

    /// A plan with `chunks`: what comes before runs before the head is sent.
    fn stream(&mut self, plan: &Plan, keep: bool, record: &mut Record) -> io::Result<bool> {
        if let Err(why) = self.gpu(plan, record).map(|_| ()) {
            let text = format!("{{\"error\":{}}}\n", json_string(&why));
            self.body.extend_from_slice(text.as_bytes());
            self.reply(500, "application/json", keep, false, record)?;
            return Ok(keep);
        }
        let mut started = false;
        let mut index = 0;
        let mut failure = None;
        'plan: for &step in &plan.steps {
            let Step::Chunks { count, ns } = step else {
                if !host_step(step, record)
                    && let Some(gpu) = &mut self.gpu
                    && let Err(why) = gpu.step(step, &mut record.cuda)
                {
                    failure = Some(why);
                    break;
                }
                continue;
            };
            if !started {
                started = true;
                record.status = 200;
                self.start_head(200, "text/event-stream", keep, &record.rid);
                self.head.push_str("Cache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n");
                self.wire.send(self.head.as_bytes(), b"", &mut self.joined, &mut record.write)?;
            }
            for _ in 0..count {
                match &mut self.gpu {
                    Some(gpu) => {
                        if let Err(why) = gpu.chunk(ns, &mut record.cuda) {
                            failure = Some(why);
                            break 'plan;
                        }
                    }
                    None => timed("sleep", record, || sleep(ns)),
                }
                self.body.clear();
                self.body.extend_from_slice(event(index).as_bytes());
                record.response_bytes += self.body.len() as u64;
                self.head.clear();
                let _ = write!(self.head, "{:x}\r\n", self.body.len());
                self.body.extend_from_slice(b"\r\n");
                self.wire.send(
                    self.head.as_bytes(),
                    &self.body,
                    &mut self.joined,
                    &mut record.write,
                )?;
                index += 1;
            }
        }
        if let Some(gpu) = &mut self.gpu
            && let Err(why) = gpu.end(&mut record.cuda)
        {
            failure = failure.or(Some(why));
        }
        match failure {
            Some(why) if !started => {
                self.body.clear();
                let text = format!("{{\"error\":{}}}\n", json_string(&why.to_string()));
                self.body.extend_from_slice(text.as_bytes());
                self.reply(500, "application/json", keep, false, record)?;
                Ok(keep)
            }
            // The status is out already: an unfinished body is the only way to say it.
            Some(_) => Ok(false),
            None => {
                self.wire.send(b"0\r\n\r\n", b"", &mut self.joined, &mut record.write)?;
                Ok(keep)
            }
        }
    }
}

/// The event that the server streams as number `index`.
pub fn event(index: u64) -> String {
    format!("data: {{\"chunk\":{index}}}\n\n")
}

/// Does `work` between two stamps.
fn timed(name: &'static str, record: &mut Record, work: impl FnOnce()) {
    let before = now_ns();
    work();
    let after = now_ns();
    record.host.push((name, before, after));
}

/// Carries out a step that needs no driver; says whether it was one.
fn host_step(step: Step, record: &mut Record) -> bool {
    match step {
        Step::Sleep { ns } => timed("sleep", record, || sleep(ns)),
        Step::Spin { ns } => timed("spin", record, || spin(ns)),
        Step::Response { .. } => {}
        _ => return false,
    }
    true
}
