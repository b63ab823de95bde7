//! Collectors that are none.

use std::{
    io::Read as _,
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

/// An endpoint where nobody listens.
pub fn refused() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// An endpoint where connections are taken and nothing is ever answered, or where they are reset
/// once something was read.
///
/// Its thread lives as long as the test's process: it blocks in `accept`.
fn listening(mut treat: impl FnMut(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            treat(stream);
        }
    });
    endpoint
}

/// An endpoint that takes connections and never answers.
pub fn silent() -> String {
    let mut held = Vec::new();
    listening(move |stream| held.push(stream))
}

/// An endpoint that reads a little and resets the connection.
pub fn resetting() -> String {
    listening(|mut stream| {
        let _ = stream.read(&mut [0; 64]);
        // With no time to linger, closing resets.
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    })
}
