//! HTTP by hand: requests whose every byte the test chooses.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// A connection that keeps what it did not need yet.
#[derive(Debug)]
pub struct Raw<S> {
    stream: S,
    buffer: Vec<u8>,
}

/// Longest silence.
const PATIENCE: Duration = Duration::from_secs(20);

impl Raw<TcpStream> {
    /// Connects to a port of this machine.
    ///
    /// # Errors
    /// Where nobody listens.
    pub fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }

    /// The port on this side.
    ///
    /// # Errors
    /// Where the socket is none.
    pub fn local_port(&self) -> Result<u16> {
        Ok(self.stream.local_addr()?.port())
    }
}

impl<S: Read + Write> Raw<S> {
    /// Over a stream that is connected.
    pub fn over(stream: S) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// Where the other end is gone.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush().context("sending")
    }

    /// Receives so many bytes.
    ///
    /// # Errors
    /// Where they do not come.
    pub fn receive(&mut self, count: usize) -> Result<Vec<u8>> {
        while self.buffer.len() < count {
            self.more()?;
        }
        Ok(self.buffer.drain(..count).collect())
    }

    fn more(&mut self) -> Result<()> {
        let mut chunk = [0; 65536];
        let count = self.stream.read(&mut chunk).context("receiving")?;
        ensure!(count > 0, "the other end closed the connection");
        self.buffer.extend(chunk.iter().take(count));
        Ok(())
    }

    /// Receives a response with a `Content-Length`, head and body.
    ///
    /// # Errors
    /// Where it does not come.
    pub fn response(&mut self) -> Result<Vec<u8>> {
        let end = loop {
            let found = self.buffer.windows(4).position(|window| window == b"\r\n\r\n");
            match found {
                Some(at) => break at + 4,
                None => self.more()?,
            }
        };
        let head = self.receive(end)?;
        let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .and_then(|length| length.trim().parse().ok())
            .unwrap_or(0);
        let body = self.receive(length)?;
        Ok([head, body].concat())
    }

    /// Sends a request and receives its response: bytes of both.
    ///
    /// # Errors
    /// Where either fails.
    pub fn exchange(&mut self, method: &str, path: &str, body: &[u8]) -> Result<(usize, usize)> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let request = [head.as_bytes(), body].concat();
        self.send(&request)?;
        Ok((request.len(), self.response()?.len()))
    }
}
