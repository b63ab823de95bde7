//! What a process is called.

/// Programs that run others: what they run says more than their own name.
const INTERPRETERS: [&str; 6] = ["python", "pypy", "node", "ruby", "java", "perl"];

/// The name of its executable (`exe`: the path); of an interpreter's process its short name
/// (`comm`), where that is another: the kernel names a process after the script that was executed,
/// and servers name their workers.
pub fn service_name<'a>(exe: &'a str, comm: &'a str) -> &'a str {
    let name = exe.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(comm);
    let interpreter = INTERPRETERS.into_iter().find(|known| name.starts_with(known));
    match interpreter {
        Some(known) if !comm.is_empty() && !comm.starts_with(known) => comm,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interpreter_runs_names_it() {
        assert_eq!(service_name("/usr/sbin/nginx", "nginx: worker"), "nginx");
        assert_eq!(service_name("/usr/bin/python3.11", "uvicorn"), "uvicorn");
        assert_eq!(service_name("/usr/bin/python3.11", "VLLM::EngineCor"), "VLLM::EngineCor");
        // Run as `python server.py`.
        assert_eq!(service_name("/usr/bin/python3.11", "python"), "python3.11");
        assert_eq!(service_name("/usr/bin/python3.11", ""), "python3.11");
        assert_eq!(service_name("", "kept"), "kept");
    }
}
