//! Where settings come from: the command line, before the environment, before a file, before what
//! is built in.
//!
//! Every option of `run` and `record` is a setting of the same name. What the environment and the
//! file say becomes the option's default, so that it passes through the very same checks as what is
//! typed; before that each is tried alone, so that an error can say where the value came from.
//!
//! The options that choose processes are one setting: whoever names a process on the command line
//! does not get those of the file too.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt, fs, io,
    path::{Path, PathBuf},
};

use clap::{
    Arg, ArgAction, ArgMatches, Command, CommandFactory as _, FromArgMatches as _,
    error::ErrorKind, parser::ValueSource,
};

use super::args::Cli;

/// Read where no other file is named, if it is there.
pub const DEFAULT_FILE: &str = "/etc/spanprobe/config.toml";
/// Begins the names of all variables.
const PREFIX: &str = "SPANPROBE_";
/// Bytes of a file.
const MAX_FILE: u64 = 1 << 20;
/// Subcommands whose options are settings.
const CONFIGURED: [&str; 4] = ["run", "record", "replay", "config"];
/// Options that choose processes.
const SELECTORS: [&str; 5] = ["pid", "exe", "port", "container", "cuda"];
/// clap's name of the group of those.
const SELECTOR_GROUP: &str = "SelectorArgs";
/// Options that are no settings: what is written where is decided each time.
const NO_SETTINGS: [&str; 6] = ["help", "version", "config", "output", "force", "for"];

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Typed.
    CommandLine,
    /// A variable of the environment.
    Variable(String),
    /// A file.
    File(PathBuf),
    /// Built in.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => f.write_str("command line"),
            Self::Variable(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Values of one option, and where they came from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    values: Vec<String>,
    origin: Origin,
}

/// By the option's long name.
type Layer = BTreeMap<String, Given>;

/// What is asked of the world.
pub trait World {
    /// A variable of the environment.
    fn variable(&self, name: &str) -> Option<OsString>;
    /// The text of a file.
    ///
    /// # Errors
    /// Where it is not there, or cannot be read.
    fn file(&self, path: &Path) -> io::Result<String>;
}

/// This machine.
pub struct Here;

impl World for Here {
    fn variable(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    fn file(&self, path: &Path) -> io::Result<String> {
        if fs::metadata(path)?.len() > MAX_FILE {
            return Err(io::Error::other("too large for a configuration"));
        }
        fs::read_to_string(path)
    }
}

/// The command line with everything that stands behind it.
pub struct Settings {
    /// What is to be done.
    pub cli: Cli,
    matches: ArgMatches,
    command: Command,
    below: Layer,
}

/// Reads all layers.
///
/// # Errors
/// clap's, whose text says where a value came from that makes no sense, and for `--help`.
pub fn read(argv: &[OsString], world: &dyn World) -> Result<Settings, clap::Error> {
    let mut command = Cli::command();
    let typed = lenient(&command).try_get_matches_from(argv);
    let named = typed.as_ref().ok().and_then(ArgMatches::subcommand);
    let mut below = Layer::new();
    if let Some((name, typed)) = named
        && CONFIGURED.contains(&name)
    {
        let file = typed.get_one::<PathBuf>("config").cloned();
        below = layers(&command, file, world)
            .map_err(|why| clap::Error::raw(ErrorKind::ValueValidation, why + "\n"))?;
        keep_one_choice(&mut below, |long| was_typed(&command, name, typed, long));
        command = with_defaults(command, name, &below);
    }
    let matches = command.clone().try_get_matches_from(argv)?;
    let cli = Cli::from_arg_matches(&matches)?;
    Ok(Settings { cli, matches, command, below })
}

/// Takes what it understands and asks for nothing.
fn lenient(command: &Command) -> Command {
    command.clone().ignore_errors(true).mut_subcommands(undemanding)
}

fn undemanding(command: Command) -> Command {
    let has_group = command.get_groups().any(|group| group.get_id() == SELECTOR_GROUP);
    let command = command.mut_args(|arg| arg.required(false));
    if has_group {
        command.mut_group(SELECTOR_GROUP, |group| group.required(false))
    } else {
        command
    }
}

fn subcommand<'a>(command: &'a Command, name: &str) -> Option<&'a Command> {
    command.get_subcommands().find(|subcommand| subcommand.get_name() == name)
}

fn by_long<'a>(command: &'a Command, long: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(long))
}

/// The subcommand that has all settings: `record` has all that `run` has. Without live tracing
/// there is only what is shown.
fn all_settings(command: &Command) -> Option<&Command> {
    subcommand(command, "record").or_else(|| subcommand(command, "replay"))
}

/// Options that are settings.
fn settings(command: &Command) -> Vec<&Arg> {
    let options = all_settings(command).into_iter().flat_map(Command::get_arguments);
    let is_setting = |arg: &&Arg| arg.get_long().is_some_and(|long| !NO_SETTINGS.contains(&long));
    options.filter(is_setting).collect()
}

fn was_typed(command: &Command, name: &str, matches: &ArgMatches, long: &str) -> bool {
    let arg = subcommand(command, name).and_then(|subcommand| by_long(subcommand, long));
    let source = arg.and_then(|arg| matches.value_source(arg.get_id().as_str()));
    source == Some(ValueSource::CommandLine)
}

/// The environment above the file.
fn layers(
    command: &Command,
    typed_file: Option<PathBuf>,
    world: &dyn World,
) -> Result<Layer, String> {
    let named = typed_file
        .or_else(|| world.variable("SPANPROBE_CONFIG").filter(|v| !v.is_empty()).map(Into::into));
    let mut layer = match &named {
        Some(path) => {
            let text = world.file(path).map_err(|why| format!("{}: {why}", path.display()))?;
            of_file(command, path, &text)?
        }
        None => match world.file(Path::new(DEFAULT_FILE)) {
            Ok(text) => of_file(command, Path::new(DEFAULT_FILE), &text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Layer::new(),
            Err(why) => return Err(format!("{DEFAULT_FILE}: {why}")),
        },
    };
    let environment = of_environment(command, world)?;
    // One choice of processes replaces the other.
    if SELECTORS.iter().any(|long| environment.contains_key(*long)) {
        layer.retain(|long, _| !SELECTORS.contains(&long.as_str()));
    }
    layer.extend(environment);
    let mut checked = Layer::new();
    for (long, given) in layer {
        if let Some(given) = bare(command, &long, given) {
            check(command, &long, &given)?;
            checked.insert(long, given);
        }
    }
    Ok(checked)
}

/// `true` for an option whose value may be left out is the option without one; `false` is none.
fn bare(command: &Command, long: &str, given: Given) -> Option<Given> {
    let all = all_settings(command)?;
    let arg = by_long(all, long)?;
    let optional =
        arg.get_num_args().is_some_and(|count| count.min_values() == 0 && count.takes_values());
    match given.values.as_slice() {
        [value] if optional && value == "false" => None,
        [value] if optional && value == "true" => {
            let typed = undemanding(all.clone()).no_binary_name(true);
            let matches = typed.try_get_matches_from([format!("--{long}")]).ok()?;
            Some(Given { values: raw(&matches, arg.get_id().as_str())?, ..given })
        }
        _ => Some(given),
    }
}

fn of_file(command: &Command, path: &Path, text: &str) -> Result<Layer, String> {
    let table: toml::Table = text.parse().map_err(|why| format!("{}: {why}", path.display()))?;
    let known = settings(command);
    let mut layer = Layer::new();
    for (key, value) in &table {
        let long = key.replace('_', "-");
        if !known.iter().any(|arg| arg.get_long() == Some(&long)) {
            let shown = known.iter().filter(|arg| !arg.is_hide_set());
            let names: Vec<&str> = shown.filter_map(|arg| arg.get_long()).collect();
            let names = names.join(", ");
            return Err(format!("{}: no setting is called {key}: {names} are", path.display()));
        }
        let values = values(value).ok_or_else(|| {
            format!("{}: {key}: a value or a list of values is wanted", path.display())
        })?;
        layer.insert(long, Given { values, origin: Origin::File(path.to_owned()) });
    }
    Ok(layer)
}

/// A value as it would be typed.
fn values(value: &toml::Value) -> Option<Vec<String>> {
    use toml::Value;
    let one = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    };
    match value {
        Value::Array(list) => list.iter().map(one).collect(),
        value => Some(vec![one(value)?]),
    }
}

/// `SPANPROBE_CAPTURE_LEN` for `--capture-len`; lists have commas between their values.
fn of_environment(command: &Command, world: &dyn World) -> Result<Layer, String> {
    let mut layer = Layer::new();
    for arg in settings(command) {
        let Some(long) = arg.get_long() else { continue };
        let name = format!("{PREFIX}{}", long.replace('-', "_").to_ascii_uppercase());
        let Some(value) = world.variable(&name).filter(|value| !value.is_empty()) else { continue };
        let Some(value) = value.to_str() else { return Err(format!("{name}: not UTF-8")) };
        if is_service_link(value) {
            continue;
        }
        let values = match arg.get_action() {
            ArgAction::Append => value.split(',').map(|part| part.trim().to_owned()).collect(),
            _ => vec![value.to_owned()],
        };
        layer.insert(long.to_owned(), Given { values, origin: Origin::Variable(name) });
    }
    Ok(layer)
}

/// Kubernetes sets `SPANPROBE_PORT` for a Service of that name, which is none of our settings.
fn is_service_link(value: &str) -> bool {
    ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme))
}

/// Tries a value alone.
fn check(command: &Command, long: &str, given: &Given) -> Result<(), String> {
    let complain = |why: &str| Err(format!("{}: {long}: {why}", given.origin));
    let Some(all) = all_settings(command) else { return Ok(()) };
    let Some(arg) = by_long(all, long) else { return Ok(()) };
    if is_flag(arg) {
        return match given.values.as_slice() {
            [one] if one == "true" || one == "false" => Ok(()),
            _ => complain("true or false is wanted"),
        };
    }
    if given.values.len() != 1 && !matches!(arg.get_action(), ArgAction::Append) {
        return complain("one value is wanted");
    }
    let alone = undemanding(all.clone()).no_binary_name(true);
    let typed = given.values.iter().map(|value| format!("--{long}={value}"));
    match alone.try_get_matches_from(typed) {
        Ok(_) => Ok(()),
        Err(error) => {
            let text = error.to_string();
            let text = text.lines().next().unwrap_or_default();
            complain(text.strip_prefix("error: ").unwrap_or(text))
        }
    }
}

fn is_flag(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Drops the choice of processes from below where one was typed.
fn keep_one_choice(below: &mut Layer, typed: impl Fn(&str) -> bool) {
    if SELECTORS.iter().any(|long| typed(long)) {
        below.retain(|long, _| !SELECTORS.contains(&long.as_str()));
    }
}

/// What stands below the command line becomes what its options are by default.
fn with_defaults(command: Command, name: &str, below: &Layer) -> Command {
    let chosen = SELECTORS.iter().any(|long| {
        below.get(*long).is_some_and(|given| given.values.iter().any(|value| value != "false"))
    });
    command.mut_subcommand(name, |mut subcommand| {
        let ids: Vec<_> = subcommand
            .get_arguments()
            .filter_map(|arg| Some((arg.get_id().clone(), below.get(arg.get_long()?)?.clone())))
            .collect();
        for (id, given) in ids {
            subcommand = subcommand.mut_arg(id, |arg| arg.default_values(given.values));
        }
        let group = subcommand.get_groups().any(|group| group.get_id() == SELECTOR_GROUP);
        if group && (chosen || name == "config") {
            subcommand = subcommand.mut_group(SELECTOR_GROUP, |group| group.required(false));
        }
        subcommand
    })
}

impl Settings {
    /// Every setting, as a configuration file that says the same, with where each came from.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let Some((name, matches)) = self.matches.subcommand() else { return text };
        for arg in settings(&self.command) {
            let Some(long) = arg.get_long().filter(|_| !arg.is_hide_set()) else { continue };
            let own = subcommand(&self.command, name).and_then(|command| by_long(command, long));
            let id = own.unwrap_or(arg).get_id().as_str();
            let origin = self.origin(matches, id, long);
            let line = match (own, raw(matches, id)) {
                (Some(_), Some(values)) => format!("{long} = {}", written(arg, &values)),
                _ => format!("# {long} is not set"),
            };
            text.push_str(&match line.starts_with('#') {
                true => format!("{line}\n"),
                false => format!("{line}  # {origin}\n"),
            });
        }
        text
    }

    fn origin(&self, matches: &ArgMatches, id: &str, long: &str) -> Origin {
        let known = matches.try_contains_id(id).is_ok();
        match known.then(|| matches.value_source(id)).flatten() {
            Some(ValueSource::CommandLine) => Origin::CommandLine,
            // An option may have a variable of its own, of a standard.
            Some(ValueSource::EnvVariable) => Origin::Variable("environment".to_owned()),
            _ => self.below.get(long).map_or(Origin::Default, |given| given.origin.clone()),
        }
    }
}

/// The values of an option as they were written; `None` where it has none.
fn raw(matches: &ArgMatches, id: &str) -> Option<Vec<String>> {
    let raw = matches.try_get_raw(id).ok()??;
    Some(raw.map(|value: &OsStr| value.to_string_lossy().into_owned()).collect())
}

/// Values in TOML.
fn written(arg: &Arg, values: &[String]) -> String {
    let one = |value: &String| match (value.parse::<i64>(), value.as_str()) {
        (Ok(number), _) if number.to_string() == *value => toml::Value::Integer(number),
        (_, "true" | "false") if is_flag(arg) => toml::Value::Boolean(value == "true"),
        _ => toml::Value::String(value.clone()),
    };
    match arg.get_action() {
        ArgAction::Append => toml::Value::Array(values.iter().map(one).collect()).to_string(),
        _ => values.last().map(|value| one(value).to_string()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
