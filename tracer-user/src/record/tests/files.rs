//! What is written is read, up to where the file is whole.

use super::{super::format::*, *};

proptest! {
    #[test]
    fn what_was_written_is_read(inputs in inputs(false)) {
        let file = write(&inputs, Options::default());
        prop_assert_eq!(read(&file).ok(), Some((inputs, Ending::Clean)));
    }

    #[test]
    fn a_replay_gives_the_same_events(inputs in inputs(true)) {
        let through = |inputs: &mut dyn Iterator<Item = Input<'_>>| {
            let (mut intake, mut out) = (Intake::default(), Vec::new());
            for input in inputs {
                intake.push(input);
                out.extend(std::iter::from_fn(|| intake.next_due()));
            }
            intake.finish();
            out.extend(std::iter::from_fn(|| intake.next_due()));
            (out, intake.counts().records, intake.counts().bad_records, intake.counts().order)
        };
        let (replayed, _) = read(&write(&inputs, Options::default())).expect("readable");
        prop_assert_eq!(
            through(&mut inputs.iter().map(Owned::input)),
            through(&mut replayed.iter().map(Owned::input))
        );
    }

    #[test]
    fn any_bytes_are_read_without_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        fuzz(&bytes);
        let mut file = write(&[], Options::default());
        file.truncate(file.len() - FRAME_HEADER_LEN - END_LEN);
        file.append(&mut bytes);
        fuzz(&file);
    }
}

#[test]
fn the_start_comes_first_and_is_whole() {
    let file = write(&[], Options { without_bodies: true, ..Options::default() });
    let mut reader = Reader::new(&file[..]).unwrap();
    assert!(reader.without_bodies());
    assert_eq!(reader.read(), Some(Input::Start(&start())));
    assert_eq!(reader.read(), None);
    assert_eq!(reader.end(), Some(End { frames: 1, records: 0, at_size_cap: false }));
}

#[test]
fn a_cut_at_any_byte_leaves_what_is_before() {
    let inputs = small();
    let file = write(&inputs, Options::default());
    let whole = |cut: usize| {
        let mut at = FILE_HEADER_LEN;
        let mut frames = 0;
        while at + FRAME_HEADER_LEN <= cut {
            let len = u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
            if at + FRAME_HEADER_LEN + len > cut {
                break;
            }
            at += FRAME_HEADER_LEN + len;
            frames += 1;
        }
        (frames, at as u64)
    };
    for cut in 0..file.len() {
        fuzz(&file[..cut]);
        let (frames, at) = whole(cut);
        match read(&file[..cut]) {
            Err(OpenError::NotASession) => assert!(cut < FILE_HEADER_LEN),
            Err(OpenError::NoStart) => assert!(cut >= FILE_HEADER_LEN && frames == 0),
            Err(other) => panic!("{other}"),
            Ok((read, ending)) => {
                assert_eq!(read, inputs[..frames - 1], "cut at {cut}");
                assert_eq!(ending, Ending::Cut { at });
            }
        }
    }
}

#[test]
fn a_flipped_bit_is_found_and_what_is_before_is_kept() {
    let inputs = small();
    let file = write(&inputs, Options::default());
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut bad = file.clone();
            bad[at] ^= 1 << bit;
            fuzz(&bad);
            match read(&bad) {
                Ok((read, Ending::Clean)) => {
                    // The only bit that is not protected: bodies are said to be left out.
                    assert_eq!((at, bit, read), (12, 0, inputs.clone()));
                }
                Ok((read, _)) => assert_eq!(read, inputs[..read.len()], "byte {at}"),
                Err(OpenError::NotASession) => assert!(at < 8),
                Err(OpenError::Format(_)) => assert!((8..12).contains(&at)),
                Err(OpenError::Flags(_)) => assert!((12..16).contains(&at)),
                Err(OpenError::NoStart) => assert!(at >= FILE_HEADER_LEN),
                Err(other) => panic!("{other}"),
            }
        }
    }
}

/// A file with these frames.
fn frames(frames: &[(u8, &[u8])]) -> Vec<u8> {
    let mut file = file_header(0).to_vec();
    let begin = serde_json::to_vec(&start()).unwrap();
    for (kind, payload) in [(1, &begin[..])].iter().chain(frames) {
        file.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        file.extend_from_slice(&checksum(*kind, payload).to_le_bytes());
        file.push(*kind);
        file.extend_from_slice(payload);
    }
    file
}

#[test]
fn frames_that_do_not_belong_are_damage() {
    let begin = serde_json::to_vec(&start()).unwrap();
    let at = frames(&[]).len() as u64;
    let end = |frames: u64, records: u64, why: u8| {
        [&frames.to_le_bytes()[..], &records.to_le_bytes(), &[why]].concat()
    };
    let corrupt = Ending::Corrupt { at };
    type Case<'a> = (&'a [(u8, &'a [u8])], Ending);
    let cases: [Case<'_>; 10] = [
        (&[(1, &begin)], corrupt),
        (&[(3, b"12345678{}")], corrupt),
        (&[(4, b"short")], corrupt),
        (&[(5, b"123456789")], corrupt),
        (&[(77, b"")], corrupt),
        (&[(255, &end(1, 0, 2))], corrupt),
        (&[(255, &end(2, 0, 0))], corrupt),
        (&[(255, &end(1, 1, 0))], corrupt),
        (&[(255, &end(1, 0, 0)), (5, b"12345678")], corrupt),
        (&[(255, &end(1, 0, 1))], Ending::Clean),
    ];
    for (number, (case, ending)) in cases.iter().enumerate() {
        let (inputs, got) = read(&frames(case)).unwrap();
        assert_eq!((inputs.len(), got), (0, *ending), "case {number}");
    }
}

#[test]
fn a_claimed_length_costs_nothing() {
    let mut file = frames(&[]);
    let at = file.len() as u64;
    file.extend_from_slice(&(MAX_PAYLOAD as u32).to_le_bytes());
    file.extend_from_slice(&[0, 0, 0, 0, 2, 1, 2, 3]);
    let mut reader = Reader::new(&file[..]).unwrap();
    while reader.read().is_some() {}
    assert_eq!(reader.ending(), Some(Ending::Cut { at }));
    assert!(reader.buffer_capacity() < 128 << 10);
    file[at as usize..][..4].copy_from_slice(&(MAX_PAYLOAD as u32 + 1).to_le_bytes());
    assert_eq!(read(&file).unwrap().1, Ending::Corrupt { at });
}

#[test]
fn strangers_are_turned_away() {
    let file = write(&[], Options::default());
    assert!(matches!(read(b""), Err(OpenError::NotASession)));
    assert!(matches!(read(b"SPANPRB"), Err(OpenError::NotASession)));
    assert!(matches!(read(b"{\"schema\":1}\n{\"schema\":1}"), Err(OpenError::NotASession)));
    let mut other = file.clone();
    other[8] = 2;
    assert!(matches!(read(&other), Err(OpenError::Format(2))));
    other = file.clone();
    other[15] = 1;
    assert!(matches!(read(&other), Err(OpenError::Flags(0x100_0000))));
    let mut begin = start();
    begin.wire_version += 1;
    let mut file = Vec::new();
    drop(Writer::new(&mut file, &begin, Options::default()));
    assert!(matches!(read(&file), Err(OpenError::Wire(version)) if version == WIRE_VERSION + 1));
}

#[test]
fn the_system_may_stop_handing_out_bytes() {
    struct Fails<'a>(&'a [u8]);
    impl std::io::Read for Fails<'_> {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            match self.0.read(to) {
                Ok(0) => Err(std::io::ErrorKind::TimedOut.into()),
                other => other,
            }
        }
    }
    let file = write(&small(), Options::default());
    let cut = file.len() - FRAME_HEADER_LEN - END_LEN;
    let mut reader = Reader::new(Fails(&file[..cut])).unwrap();
    let mut inputs = 0;
    while reader.read().is_some() {
        inputs += 1;
    }
    assert_eq!(inputs, 1 + small().len());
    let error = std::io::ErrorKind::TimedOut;
    assert_eq!(reader.ending(), Some(Ending::Failed { at: cut as u64, error }));
}
