//! How a file comes to be, and how it stops.

use std::{fs, io, os::unix::fs::PermissionsExt};

use super::{super::writer::WriteCounts, *};

#[test]
fn a_file_is_its_owners_alone_and_nothing_is_overwritten_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.spr");
    let mut writer = create(&path, &start(), Options::default()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    writer.push(Input::Tick { now_ns: 6 }).unwrap();
    let counts = writer.finish().unwrap();
    assert_eq!(counts.bytes, fs::metadata(&path).unwrap().len());
    assert_eq!(*writer.state(), State::Finished);
    assert_eq!(writer.finish().unwrap(), counts);
    writer.push(Input::Tick { now_ns: 7 }).unwrap();
    drop(writer);
    let mut reader = open(&path).unwrap();
    while reader.read().is_some() {}
    assert_eq!(reader.ending(), Some(Ending::Clean));

    let again = create(&path, &start(), Options::default());
    assert!(matches!(&again, Err(CreateError::Exists(_))));
    assert!(again.unwrap_err().to_string().contains("--force"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let force = Options { force: true, ..Options::default() };
    drop(create(&path, &start(), force).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let (inputs, ending) = read(&fs::read(&path).unwrap()).unwrap();
    assert_eq!((inputs.len(), matches!(ending, Ending::Cut { .. })), (0, true));
}

#[test]
fn links_and_directories_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (target, link) = (dir.path().join("target"), dir.path().join("link"));
    fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let force = Options { force: true, ..Options::default() };
    for path in [&link, &dir.path().to_owned()] {
        assert!(matches!(create(path, &start(), force), Err(CreateError::NotAFile(_))));
    }
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    let nowhere = create(&dir.path().join("none/a.spr"), &start(), force);
    assert!(matches!(nowhere, Err(CreateError::Io { .. })));
}

#[test]
fn a_second_of_session_time_brings_the_bytes_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.spr");
    let mut writer = create(&path, &start(), Options::default()).unwrap();
    let len = || fs::metadata(&path).unwrap().len();
    let begun = len();
    assert!(begun > 16);
    writer.push(Input::Tick { now_ns: 1_000_000_000 }).unwrap();
    assert_eq!(len(), begun);
    writer.push(Input::Tick { now_ns: 1_000_000_005 }).unwrap();
    assert_eq!(len(), begun + 2 * 17);
    writer.push(Input::Tick { now_ns: 1_500_000_000 }).unwrap();
    drop(writer);
    assert_eq!(len(), begun + 3 * 17);
}

#[test]
fn the_size_cap_ends_the_file_cleanly() {
    let uncapped = write(&small(), Options::default()).len() as u64;
    for cap in 0..=uncapped {
        let options = Options { max_bytes: Some(cap), ..Options::default() };
        let mut file = Vec::new();
        let Ok(mut writer) = Writer::new(&mut file, &start(), options) else {
            assert!(cap < 400);
            continue;
        };
        let mut errors = Vec::new();
        for input in small() {
            errors.extend(writer.push(input.input()).err());
        }
        let finished = writer.finish();
        drop(writer);
        assert!(file.len() as u64 <= cap, "{} over {cap}", file.len());
        let mut reader = Reader::new(&file[..]).unwrap();
        while reader.read().is_some() {}
        assert_eq!(reader.ending(), Some(Ending::Clean));
        let at_cap = cap < uncapped;
        assert_eq!(reader.end().map(|end| end.at_size_cap), Some(at_cap));
        assert_eq!(finished.is_err(), at_cap);
        assert_eq!(errors, if at_cap { vec![Stopped::SizeCap(cap)] } else { vec![] });
    }
}

/// A device with this much room.
struct Room(usize, Vec<u8>);

impl io::Write for Room {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(self.0 - self.1.len());
        if fits == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.1.extend_from_slice(&bytes[..fits]);
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_device_stops_the_recording_once() {
    let mut room = Room(2_000, Vec::new());
    let mut writer =
        Writer::new(io::Write::by_ref(&mut room), &start(), Options::default()).unwrap();
    let mut errors = Vec::new();
    for second in 1..200 {
        errors.extend(writer.push(Input::Tick { now_ns: second * 1_000_000_010 }).err());
    }
    assert_eq!(errors, [Stopped::Full]);
    assert_eq!(*writer.state(), State::Stopped(Stopped::Full));
    assert_eq!(writer.finish(), Err(Stopped::Full));
    drop(writer);
    let (inputs, ending) = read(&room.1).unwrap();
    assert!(inputs.len() > 80 && matches!(ending, Ending::Cut { .. }));
}

#[test]
fn what_fits_no_frame_stops_the_recording_or_stays_undecodable() {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, &start(), Options::default()).unwrap();
    writer.push(Input::Record(&vec![1; 2 << 20])).unwrap();
    let exe = "e".repeat(2 << 20);
    let fact = ProcFact::Target { pid: 1, exe, comm: String::new(), cuda: false };
    let refused = writer.push(Input::Fact { time_ns: 1, fact: &fact });
    assert!(matches!(refused, Err(Stopped::TooLong(_))));
    assert_eq!(writer.counts().records, 1);
    drop(writer);
    let (inputs, _) = read(&file).unwrap();
    assert!(matches!(&inputs[..], [Owned::Record(record)] if record.len() == 1 << 20));
}

#[test]
fn counts_are_those_of_the_file() {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, &start(), Options::default()).unwrap();
    let secret = sample::io(1, 1, IoCall::Read, b"GET / HTTP/1.1\r\nCookie: a\r\n\r\n", 0);
    writer.push(Input::Start(&start())).unwrap();
    writer.push(Input::Record(&secret)).unwrap();
    writer.push(Input::Record(b"junk")).unwrap();
    let counts = writer.finish().unwrap();
    drop(writer);
    let redacted = redact::RedactCounts { secrets: 1, bad_records: 1, forgotten: 0 };
    let bytes = file.len() as u64;
    assert_eq!(counts, WriteCounts { bytes, frames: 4, records: 2, redacted });
}
