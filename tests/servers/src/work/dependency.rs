//! A kept-alive connection to another server that a request waits for.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::http::{Framing, head_length, parse_response};
use crate::socket::no_delay;
use crate::wire::{Io, Wire};

/// Longer than any plan may sleep.
const PATIENCE: Duration = Duration::from_secs(150);

/// One thread's connection.
pub(super) struct Dependency {
    addr: SocketAddr,
    wire: Option<Wire>,
}

impl Dependency {
    pub(super) fn new(addr: SocketAddr) -> Dependency {
        Dependency { addr, wire: None }
    }

    /// Has the dependency sleep for `ns` and waits for its answer. Its request is named after
    /// `rid`, where that can stand in a target as it is.
    pub(super) fn ask(&mut self, ns: u64, rid: &str) -> io::Result<()> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        let name = match rid.bytes().all(plain) && !rid.is_empty() {
            true => format!("&rid={rid}.dep"),
            false => String::new(),
        };
        let addr = self.addr;
        let request = format!(
            "POST /infer?plan=sleep:{ns}{name} HTTP/1.1\r\nHost: {addr}\r\nContent-Length: 0\r\n\r\n"
        );
        // A kept connection may have been closed meanwhile: that is no failure of the dependency.
        let kept = self.wire.is_some();
        match self.exchange(&request) {
            Err(_) if kept => self.exchange(&request),
            answered => answered,
        }
    }

    fn exchange(&mut self, request: &str) -> io::Result<()> {
        let mut wire = match self.wire.take() {
            Some(wire) => wire,
            None => connect(self.addr)?,
        };
        wire.send(request.as_bytes(), b"", &mut Vec::new(), &mut Vec::new())?;
        let length = loop {
            match head_length(wire.data()) {
                Some(length) => break length,
                None => fill(&mut wire)?,
            }
        };
        let response = parse_response(wire.data().get(..length).unwrap_or_default())
            .map_err(io::Error::other)?;
        wire.consume(length);
        let mut left = match response.framing {
            Framing::Length(length) => length as usize,
            Framing::Empty => 0,
            _ => return Err(io::Error::other("an answer without a length")),
        };
        loop {
            let here = left.min(wire.data().len());
            wire.consume(here);
            left -= here;
            if left == 0 {
                break;
            }
            fill(&mut wire)?;
        }
        wire.take_rest(&mut Vec::new());
        if response.keep_alive {
            self.wire = Some(wire);
        }
        match response.status {
            200 => Ok(()),
            status => Err(io::Error::other(format!("status {status}"))),
        }
    }
}

fn connect(addr: SocketAddr) -> io::Result<Wire> {
    let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let wire = Wire::new(OwnedFd::from(stream), Io::Recv);
    no_delay(wire.raw_fd());
    Ok(wire)
}

fn fill(wire: &mut Wire) -> io::Result<()> {
    match wire.fill()?.result {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        _ => Ok(()),
    }
}
