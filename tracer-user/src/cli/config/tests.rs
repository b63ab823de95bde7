//! Every layer, its order, and what is said of values that make no sense.
#![cfg(feature = "live")]

use std::collections::HashMap;

use super::super::args::{Command as Asked, RunArgs};
use super::*;

#[derive(Default)]
struct Fake {
    variables: HashMap<&'static str, &'static str>,
    files: HashMap<&'static str, &'static str>,
}

impl World for Fake {
    fn variable(&self, name: &str) -> Option<OsString> {
        self.variables.get(name).map(OsString::from)
    }

    fn file(&self, path: &Path) -> io::Result<String> {
        let text = self.files.get(path.to_str().unwrap());
        text.map(|text| (*text).to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn read_in(world: &Fake, words: &str) -> Result<Settings, String> {
    let argv: Vec<OsString> =
        ["spanprobe"].into_iter().chain(words.split_whitespace()).map(OsString::from).collect();
    read(&argv, world).map_err(|error| error.to_string())
}

fn run(world: &Fake, words: &str) -> RunArgs {
    match read_in(world, words).unwrap().cli.command {
        Asked::Run(args) => args,
        other => panic!("{other:?}"),
    }
}

fn world(
    variables: &[(&'static str, &'static str)],
    files: &[(&'static str, &'static str)],
) -> Fake {
    Fake { variables: variables.iter().copied().collect(), files: files.iter().copied().collect() }
}

#[test]
fn the_command_line_then_the_environment_then_the_file() {
    let file = [(DEFAULT_FILE, "capture-len = 1\nring_mib = 2\nslowest = 3\ncuda = true")];
    let world = world(&[("SPANPROBE_RING_MIB", "4"), ("SPANPROBE_SLOWEST", "5")], &file);
    let args = run(&world, "run --slowest 6");
    assert_eq!((args.trace.capture_len, args.trace.ring_mib, args.show.slowest), (1, 4, 6));
    assert!(args.selectors.cuda);
    let untouched = run(&Fake::default(), "run --cuda");
    assert_eq!((untouched.trace.capture_len, untouched.trace.ring_mib), (2048, 32));
}

#[test]
fn lists_and_flags() {
    let world = world(
        &[("SPANPROBE_PORT", "8000, 8001"), ("SPANPROBE_BESIDE", "false")],
        &[(DEFAULT_FILE, "beside = true\nquiet = true")],
    );
    let args = run(&world, "run");
    assert_eq!(args.selectors.ports, [8000, 8001]);
    assert!(!args.trace.beside && args.show.quiet);
}

#[test]
fn a_value_may_be_left_out_where_the_option_lets_it() {
    let asked = |text| {
        let args = run(&world(&[], &[(DEFAULT_FILE, text)]), "run --cuda");
        args.outlets.prometheus.map(|address| address.to_string())
    };
    assert_eq!(asked("prometheus = true").as_deref(), Some("127.0.0.1:9464"));
    assert_eq!(asked("prometheus = \"127.0.0.1:1\"").as_deref(), Some("127.0.0.1:1"));
    assert_eq!(asked("prometheus = false"), None);
    let world = world(&[("SPANPROBE_OTLP", "true")], &[(DEFAULT_FILE, "otlp = \"http://a:1\"")]);
    assert_eq!(run(&world, "run --cuda").outlets.otlp.as_deref(), Some(""));
}

#[test]
fn whoever_names_a_process_gets_that_one_alone() {
    let file = [(DEFAULT_FILE, "cuda = true\nport = [80]")];
    let args = run(&world(&[], &file), "run --pid 7");
    assert_eq!((args.selectors.pids.as_slice(), args.selectors.cuda), (&[7][..], false));
    assert!(args.selectors.ports.is_empty());
    let args = run(&world(&[("SPANPROBE_EXE", "python*")], &file), "run");
    assert!(!args.selectors.cuda && args.selectors.ports.is_empty());
    assert_eq!(args.selectors.exes.len(), 1);
}

#[test]
fn somebody_must_still_be_named() {
    assert!(read_in(&Fake::default(), "run").is_err());
    assert!(read_in(&world(&[], &[(DEFAULT_FILE, "cuda = false")]), "run").is_err());
    assert!(read_in(&world(&[], &[(DEFAULT_FILE, "slowest = 1")]), "run").is_err());
}

#[test]
fn errors_say_where_the_value_came_from() {
    let said = |variables: &[_], files: &[_], words: &str| {
        read_in(&world(variables, files), words).err().unwrap()
    };
    let file = |text| [(DEFAULT_FILE, text)];
    for (text, wanted) in [
        ("capture-len = 9000", "capture-len: invalid value '9000'"),
        ("capture-len = [1, 2]", "one value is wanted"),
        ("beside = \"yes\"", "true or false"),
        ("captrue-len = 1", "no setting is called captrue-len"),
        ("config = \"x\"", "no setting is called config"),
        ("[cuda]\nx = 1", "a value or a list"),
        ("cuda = ", "TOML"),
        ("exe = [\"[\"]", "not a pattern"),
    ] {
        let said = said(&[], &file(text), "run --cuda");
        assert!(said.contains(DEFAULT_FILE) && said.contains(wanted), "{text}: {said}");
    }
    let said_of = said(&[("SPANPROBE_RING_MIB", "3")], &[], "run --cuda");
    assert!(
        said_of.contains("SPANPROBE_RING_MIB") && said_of.contains("power of two"),
        "{said_of}"
    );
    let missing = said(&[], &[], "run --cuda --config /x.toml");
    assert!(missing.contains("/x.toml"), "{missing}");
    let typed = said(&[], &[], "run --cuda --ring-mib 3");
    assert!(typed.contains("--ring-mib"), "{typed}");
}

#[test]
fn which_file() {
    let files = [(DEFAULT_FILE, "slowest = 1"), ("/a", "slowest = 2"), ("/b", "slowest = 3")];
    let slowest = |variables: &[_], words: &str| run(&world(variables, &files), words).show.slowest;
    assert_eq!(slowest(&[], "run --cuda"), 1);
    assert_eq!(slowest(&[("SPANPROBE_CONFIG", "/a")], "run --cuda"), 2);
    assert_eq!(slowest(&[("SPANPROBE_CONFIG", "/a")], "run --cuda --config /b"), 3);
    assert_eq!(slowest(&[("SPANPROBE_CONFIG", "/a")], "--config /b run --cuda"), 3);
}

#[test]
fn a_service_of_that_name_is_no_setting() {
    let world = world(&[("SPANPROBE_PORT", "tcp://10.0.0.1:9464")], &[]);
    assert!(run(&world, "run --cuda").selectors.ports.is_empty());
}

#[test]
fn other_commands_have_no_settings() {
    let world = world(&[("SPANPROBE_PID", "1")], &[(DEFAULT_FILE, "no = sense")]);
    match read_in(&world, "doctor").unwrap().cli.command {
        Asked::Doctor(args) => assert_eq!(args.pid, None),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_replay_shows_as_configured() {
    let world = world(&[], &[(DEFAULT_FILE, "slowest = 9\ncuda = true")]);
    match read_in(&world, "replay f.spr").unwrap().cli.command {
        Asked::Replay(args) => assert_eq!(args.show.slowest, 9),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_description_is_a_file_that_says_the_same() {
    let file = [(DEFAULT_FILE, "exe = [\"py*\"]\nquiet = true")];
    let world = world(&[("SPANPROBE_RING_MIB", "4")], &file);
    let text = read_in(&world, "config --capture-len 100").unwrap().describe();
    for wanted in [
        "exe = [\"py*\"]  # /etc/spanprobe/config.toml",
        "quiet = true  # /etc/spanprobe/config.toml",
        "ring-mib = 4  # SPANPROBE_RING_MIB",
        "capture-len = 100  # command line",
        "slowest = 3  # default",
        "# jsonl is not set",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }
    let text: &'static str = Box::leak(text.into_boxed_str());
    let again = Fake { files: HashMap::from([("/c", text)]), ..Fake::default() };
    let args = run(&again, "run --config /c");
    assert_eq!((args.trace.ring_mib, args.trace.capture_len, args.show.quiet), (4, 100, true));
}

#[test]
fn the_names_here_are_those_of_the_options() {
    let command = Cli::command();
    let record = subcommand(&command, "record").unwrap();
    let group = record.get_groups().find(|group| group.get_id() == SELECTOR_GROUP).unwrap();
    let mut members: Vec<_> = group
        .get_args()
        .map(|id| record.get_arguments().find(|arg| arg.get_id() == id).unwrap())
        .map(|arg| arg.get_long().unwrap())
        .collect();
    members.sort_unstable();
    let mut selectors = SELECTORS;
    selectors.sort_unstable();
    assert_eq!(members, selectors);
    for name in CONFIGURED {
        assert!(subcommand(&command, name).is_some(), "{name}");
    }
}
