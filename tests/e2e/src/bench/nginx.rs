//! nginx with one worker and an answer of its own, under wrk: more requests per second than any
//! server of models answers.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use crate::child::Guard;
use crate::clock::until;
use crate::scratch::Scratch;

fn there(program: &str) -> bool {
    Command::new(program).arg("-v").output().is_ok()
}

/// Why it cannot be measured here; `None` where it can.
pub(super) fn missing() -> Option<&'static str> {
    (!there("nginx") || !there("wrk")).then_some("there is no nginx or no wrk")
}

/// nginx, while this lives.
pub(super) struct Nginx {
    guard: Guard,
    port: u16,
}

impl Nginx {
    /// Starts it, and waits until it listens.
    pub(super) fn start(scratch: &Scratch) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder: &Path = scratch.path();
        let configuration: PathBuf = folder.join("nginx.conf");
        let here = folder.display();
        let text = format!(
            "worker_processes 1;\npid {here}/nginx.pid;\nerror_log {here}/error.log;\nuser root;\n\
             events {{ worker_connections 256; }}\nhttp {{\n  access_log off;\n  \
             keepalive_requests 1000000000;\n  client_body_temp_path {here}/body;\n  \
             proxy_temp_path {here}/proxy;\n  fastcgi_temp_path {here}/fastcgi;\n  \
             uwsgi_temp_path {here}/uwsgi;\n  scgi_temp_path {here}/scgi;\n  server {{\n    \
             listen 127.0.0.1:{port};\n    location / {{ return 200 \"hello\\n\"; }}\n  }}\n}}\n"
        );
        std::fs::write(&configuration, text)?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder).arg("-c").arg(&configuration).args(["-g", "daemon off;"]);
        let guard = Guard::spawn("nginx", &mut command)?;
        until("nginx", Duration::from_secs(20), || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok().map(drop)
        })?;
        Ok(Self { guard, port })
    }

    /// Where it listens.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Requests per second that wrk reaches in so many seconds.
    pub(super) fn rate(&self, seconds: &str) -> Result<f64> {
        let url = format!("http://127.0.0.1:{}/", self.port);
        let duration = format!("-d{seconds}s");
        let output = Command::new("wrk").args(["-t1", "-c16", &duration, &url]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines()
            .find_map(|line| line.trim().strip_prefix("Requests/sec:"))
            .and_then(|rate| rate.trim().parse().ok())
            .with_context(|| format!("wrk said {text}"))
    }

    /// Ends it.
    pub(super) fn stop(mut self) -> Result<()> {
        self.guard.signal(Signal::TERM);
        self.guard.wait(Duration::from_secs(20))?;
        Ok(())
    }
}
