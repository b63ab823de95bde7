//! Real `libcuda.so` and `libnvidia-ml.so` files of two driver versions, fetched for the tests that
//! decode the one and load the other.
//!
//! They come from Debian's non-free section, from the mirror that this machine already uses, by a
//! private apt configuration under `target/real-driver`: neither the machine's sources nor its
//! packages change, and no root rights are needed. The files are never committed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packaged driver libraries.
const PACKAGES: [&str; 2] = ["libcuda1", "libnvidia-ml1"];
/// Debian releases whose driver packages belong to different driver branches (535 and 550).
const RELEASES: [&str; 2] = ["bookworm", "trixie"];

/// What lies in `target/real-driver/`.
pub struct Libraries {
    /// `libcuda.so.*`.
    pub cuda: Vec<PathBuf>,
    /// `libnvidia-ml.so.*`.
    pub nvml: Vec<PathBuf>,
}

impl Libraries {
    /// Those below `home`, in the order of their paths.
    fn below(home: &Path) -> Self {
        Self { cuda: libraries(home, "libcuda.so."), nvml: libraries(home, "libnvidia-ml.so.") }
    }

    /// Both of every driver version are there.
    fn are_whole(&self) -> bool {
        self.cuda.len().min(self.nvml.len()) >= RELEASES.len()
    }
}

/// Makes sure that the libraries of two driver versions lie in
/// `target/real-driver/<version>/` below `workspace`, fetching what is missing, and returns their
/// paths. Says on standard error what it does.
///
/// # Errors
/// A sentence that names what is missing: no Debian mirror, no network, no such package. Tests
/// skip with it.
pub fn fetch(workspace: &Path) -> Result<Libraries, String> {
    // Absolute, because apt-get runs in another folder.
    let home = std::path::absolute(workspace.join("target/real-driver"))
        .map_err(|e| format!("{}: {e}", workspace.display()))?;
    let present = Libraries::below(&home);
    if present.are_whole() {
        eprintln!("real driver: using the libraries in {}", home.display());
        return Ok(present);
    }
    let mirror = debian_mirror(Path::new("/etc/apt"))?;
    eprintln!("real driver: reading the package lists of {}", mirror.uri);
    let apt = Apt::set_up(&home, &mirror)?;
    apt.run(&["update"], &home)?;
    for release in RELEASES {
        for package in PACKAGES {
            eprintln!("real driver: downloading {package} of {release}");
            apt.run(&["download", &format!("{package}/{release}")], &home.join("deb"))?;
        }
    }
    for package in files(&home.join("deb"), |name| name.ends_with(".deb")) {
        unpack(&package, &home)?;
    }
    let found = Libraries::below(&home);
    if !found.are_whole() {
        let (cuda, nvml) = (found.cuda.len(), found.nvml.len());
        let home = home.display();
        return Err(format!("{home} holds libcuda of {cuda} and NVML of {nvml} of 2 drivers"));
    }
    for library in found.cuda.iter().chain(&found.nvml) {
        eprintln!("real driver: have {}", library.display());
    }
    Ok(found)
}

/// A Debian archive as this machine's apt knows it.
#[derive(Debug, PartialEq, Eq)]
struct Mirror {
    uri: String,
    /// Path of the keyring that signs it, where the sources name one.
    signed_by: Option<String>,
}

/// The mirror of Debian's main archive in the apt configuration at `etc`.
fn debian_mirror(etc: &Path) -> Result<Mirror, String> {
    let mut sources = files(&etc.join("sources.list.d"), |_| true);
    sources.insert(0, etc.join("sources.list"));
    for path in sources {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let found = match path.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => text.split("\n\n").find_map(from_stanza),
            Some("list") => text.lines().find_map(from_line),
            _ => None,
        };
        if let Some(mirror) = found {
            return Ok(mirror);
        }
    }
    Err(format!("no mirror of Debian's main archive in {}", etc.display()))
}

/// From a paragraph of a `.sources` file.
fn from_stanza(stanza: &str) -> Option<Mirror> {
    let field = |name: &str| {
        stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let binary = field("Types")?.split_whitespace().any(|kind| kind == "deb");
    let enabled = field("Enabled") != Some("no");
    let main = field("Components")?.split_whitespace().any(|component| component == "main");
    let uri = field("URIs")?.split_whitespace().find(|uri| is_debian_archive(uri))?;
    let signed_by = field("Signed-By").filter(|path| path.starts_with('/')).map(str::to_owned);
    (binary && enabled && main).then(|| Mirror { uri: uri.to_owned(), signed_by })
}

/// From a line of a `.list` file: `deb [options] uri suite components`.
fn from_line(line: &str) -> Option<Mirror> {
    let rest = line.trim().strip_prefix("deb ")?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let uri = words.next().filter(|uri| is_debian_archive(uri))?;
    if !words.skip(1).any(|component| component == "main") {
        return None;
    }
    let signed_by = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
    Some(Mirror { uri: uri.to_owned(), signed_by: signed_by.map(str::to_owned) })
}

/// Mirrors keep the archive under a path that ends in `debian`; the security and vendor archives
/// have other names.
fn is_debian_archive(uri: &str) -> bool {
    uri.trim_end_matches('/').ends_with("/debian")
}

/// apt-get with everything it writes below one folder.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    fn set_up(home: &Path, mirror: &Mirror) -> Result<Self, String> {
        for folder in ["lists/partial", "cache/archives/partial", "deb", "empty"] {
            let folder = home.join(folder);
            fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        let signed_by = match &mirror.signed_by {
            Some(path) => format!(" signed-by={path}"),
            None => String::new(),
        };
        let lines: String = RELEASES
            .iter()
            .map(|release| {
                format!("deb [arch=amd64{signed_by}] {} {release} non-free\n", mirror.uri)
            })
            .collect();
        let list = home.join("sources.list");
        fs::write(&list, lines).map_err(|e| format!("{}: {e}", list.display()))?;
        let path = |name: &str| home.join(name).display().to_string();
        let options = [
            format!("Dir::Etc::sourcelist={}", list.display()),
            format!("Dir::Etc::sourceparts={}", path("empty")),
            format!("Dir::Etc::preferencesparts={}", path("empty")),
            format!("Dir::State::lists={}", path("lists")),
            format!("Dir::Cache={}", path("cache")),
            // The x86-64 library on any machine: the tests read it, nothing runs it.
            "APT::Architecture=amd64".into(),
            "APT::Update::Post-Invoke-Success=".into(),
            "APT::Update::Error-Mode=any".into(),
            "Acquire::Languages=none".into(),
            "Acquire::Retries=2".into(),
            "Acquire::http::Timeout=20".into(),
            "Acquire::https::Timeout=20".into(),
            // The folder may lie where the download user has no access.
            "APT::Sandbox::User=root".into(),
        ];
        Ok(Self { options: options.into_iter().flat_map(|o| ["-o".into(), o]).collect() })
    }

    fn run(&self, arguments: &[&str], folder: &Path) -> Result<(), String> {
        let mut command = Command::new("apt-get");
        run(command.arg("-q").args(&self.options).args(arguments).current_dir(folder))
    }
}

/// Unpacks a driver package into the folder named by its upstream version.
fn unpack(package: &Path, home: &Path) -> Result<(), String> {
    let name = package.file_name().unwrap_or_default().to_string_lossy();
    // `libcuda1_535.261.03-1_amd64.deb`
    let version = name.split('_').nth(1).and_then(|full| full.split('-').next());
    let version = version.ok_or_else(|| format!("{name}: no version in the file name"))?;
    let folder = home.join(version);
    eprintln!("real driver: unpacking {name} into {}", folder.display());
    run(Command::new("dpkg-deb").arg("-x").args([package, folder.as_path()]))
}

/// Runs a command to its end; an error says what it printed last.
fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{program}: {e} (is this Debian?)"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = text.lines().rev().take(3).collect();
    Err(format!("{program}: {}: {}", output.status, last.join(" / ")))
}

/// The libraries of this name in the version folders, in the order of their paths; links left out.
fn libraries(home: &Path, begin: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for version in files(home, |name| name.starts_with(|c: char| c.is_ascii_digit())) {
        let mut folders = vec![version];
        while let Some(folder) = folders.pop() {
            for path in files(&folder, |_| true) {
                let link = path.is_symlink();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if path.is_dir() && !link {
                    folders.push(path);
                } else if name.starts_with(begin) && !link {
                    found.push(path);
                }
            }
        }
    }
    found.sort();
    found
}

/// The entries of a folder whose name is wanted, sorted; none when it cannot be read.
fn files(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter(|entry| wanted(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(uri: &str, signed_by: Option<&str>) -> Option<Mirror> {
        Some(Mirror { uri: uri.into(), signed_by: signed_by.map(Into::into) })
    }

    #[test]
    fn the_main_archive_is_told_from_others() {
        let stanza = "Types: deb\n# a comment\nURIs: http://m.example/debian\nSuites: a b\n\
                      Components: main\nSigned-By: /k.gpg";
        assert_eq!(from_stanza(stanza), mirror("http://m.example/debian", Some("/k.gpg")));
        assert_eq!(from_stanza(&stanza.replace("example/debian", "example/ubuntu")), None);
        assert_eq!(from_stanza(&stanza.replace("debian", "debian-security")), None);
        assert_eq!(from_stanza(&format!("Enabled: no\n{stanza}")), None);
        assert_eq!(from_stanza(&stanza.replace("Types: deb", "Types: deb-src")), None);
    }

    #[test]
    fn one_line_sources_are_understood() {
        let plain = "deb http://m.example/debian/ trixie main contrib";
        assert_eq!(from_line(plain), mirror("http://m.example/debian/", None));
        let signed = "deb [arch=amd64 signed-by=/k.gpg] https://m.example/debian sid main";
        assert_eq!(from_line(signed), mirror("https://m.example/debian", Some("/k.gpg")));
        assert_eq!(from_line("# deb http://m.example/debian trixie main"), None);
        assert_eq!(from_line("deb https://m.example/apt cloud-sdk main"), None);
        assert_eq!(from_line("deb http://m.example/debian trixie contrib"), None);
    }
}
