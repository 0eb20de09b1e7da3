//! Commands without options, and values from the environment.

use crate::common::{linerate, run};
use linerate_harness::program::{self, Program};
use linerate_harness::rerun::in_namespaces;

#[test]
fn no_arguments_list_the_first_commands() {
    let output = run("");
    assert_eq!((output.status.code(), output.stdout.as_str()), (Some(2), ""), "{output:?}");
    let commands: Vec<&str> = output.stderr.lines().filter_map(|line| line.strip_prefix("  linerate ")).collect();
    assert_eq!(commands.len(), 5, "{}", output.stderr);
    for (line, command) in commands.iter().zip(["doctor ", "echo serve ", "echo load ", "kv serve ", "compare "]) {
        assert!(line.starts_with(command), "{line}");
    }
}

#[test]
fn servers_and_loads_without_options_use_the_same_loopback_port() {
    in_namespaces(|_| {
        for (service, port, load) in [
            ("echo", 7007, "echo load"),
            ("discard", 7009, "discard load"),
            ("chargen", 7019, "chargen load"),
            ("http", 8080, "http load"),
            ("kv", 6379, "kv load --keys 10"),
        ] {
            let server = Program::serve(linerate(&format!("{service} serve")));
            let ready = format!("ready {service} on 127.0.0.1:{port} via kernel, 1 worker");
            assert_eq!(server.ready.trim_end_matches(", split"), ready);
            let output = run(&format!("{load} --duration 100ms"));
            assert!(output.status.success(), "{load}: {output:?}");
            let stderr = server.stop().stderr;
            let hint = format!("linerate {service} serve --via ");
            assert_eq!(stderr.lines().filter(|line| line.contains(&hint)).count(), usize::from(cfg!(feature = "dpdk")));
        }
        let server = Program::serve(linerate("kv serve --memcached 127.0.0.1"));
        assert!(server.ready.starts_with("ready kv on 127.0.0.1:11211 via"), "{}", server.ready);
        let output = run("kv load --protocol memcached --keys 10 --duration 100ms");
        assert!(output.status.success(), "{output:?}");
        server.stop();
    });
}

#[test]
fn fixes_need_a_confirmation() {
    let output = run("doctor --fix");
    assert_eq!((output.status.code(), output.stdout.as_str()), (Some(2), ""), "{output:?}");
    assert!(output.stderr.starts_with("linerate: --fix: standard input is no terminal"), "{output:?}");
}

#[test]
fn value_from_the_environment_is_named_by_its_variable() {
    let output = program::run(linerate("echo serve --listen 127.0.0.1:0").env("LINERATE_THREADING", "both"));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        output.stderr.starts_with("linerate: LINERATE_THREADING: --threading both: invalid value: use inline or split"),
        "{output:?}"
    );
}
