//! Kubernetes manifest: consistent, and accepted by the program.

#[cfg(feature = "dpdk")]
use crate::common::linerate;
use crate::common::serve;
#[cfg(feature = "dpdk")]
use linerate_harness::program;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Python program that converts YAML to JSON.
const TO_JSON: &str = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))";

/// Returns the objects of the manifest, with the lines of one kind uncommented. `None` if no YAML parser is installed.
fn manifest(kind: Option<&str>) -> Option<Vec<Value>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/examples/kubernetes.yaml");
    let mut manifest = fs::read_to_string(file).unwrap();
    if let Some(kind) = kind {
        let mark = format!("\n#{kind} ");
        assert!(manifest.contains(&mark), "{kind}");
        manifest = manifest.replace(&mark, "\n");
    }
    let has_yaml = Command::new("python3").args(["-c", "import yaml"]).stderr(Stdio::null()).status();
    if !has_yaml.is_ok_and(|status| status.success()) {
        eprintln!("skipped: python3-yaml is not installed");
        return None;
    }
    let output = output_of(Command::new("python3").args(["-c", TO_JSON]), &manifest);
    Some(serde_json::from_str(&output).unwrap())
}

#[track_caller]
fn output_of(command: &mut Command, input: &str) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn find_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap()
}

fn pod(objects: &[Value]) -> &Value {
    &find_kind(objects, "Deployment")["spec"]["template"]["spec"]
}

fn words(container: &Value) -> Vec<String> {
    container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// Returns the value of a key in the server configuration, without quotes.
fn configured<'a>(config: &'a str, key: &str) -> &'a str {
    let line = config.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_prefix('='));
    line.unwrap().trim().trim_matches('"')
}

#[test]
fn server_accepts_the_configuration_of_the_manifest() {
    let Some(objects) = manifest(None) else { return };
    let map = find_kind(&objects, "ConfigMap");
    let config = map["data"]["kv.toml"].as_str().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kv.toml");
    fs::write(&file, config).unwrap();
    let [first, second, option, config_path] = &words(&pod(&objects)["containers"][0])[..] else {
        panic!("{objects:?}")
    };
    assert_eq!(
        [first, second, option, config_path].map(String::as_str),
        ["kv", "serve", "--config", "/etc/linerate/kv.toml"]
    );
    let overrides = "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --workers 1 --memory 64m";
    let server = serve("kv", &format!("--config {} {overrides}", file.display()));
    assert!(server.ready.contains("metrics at"), "{}", server.ready);
    assert!(server.stop().status.success());
}

#[test]
fn manifest_is_consistent() {
    for kind in [None, Some("vf"), Some("link")] {
        let Some(objects) = manifest(kind) else { return };
        let (map, pod) = (find_kind(&objects, "ConfigMap"), pod(&objects));
        let config = map["data"]["kv.toml"].as_str().unwrap();
        let container = &pod["containers"][0];

        // Guaranteed quality of service, with one whole processor per worker.
        let resources = &container["resources"];
        assert_eq!(resources["requests"], resources["limits"], "{resources}");
        assert_eq!(resources["limits"]["cpu"].as_str().unwrap(), configured(config, "workers"));
        assert!(resources["limits"]["memory"].is_string());
        // An ordinary node has no hugepages, and kernel sockets need none.
        assert_eq!(resources["limits"]["hugepages-2Mi"].is_string(), kind.is_some(), "{kind:?}: {resources}");
        assert_eq!(resources["limits"]["example.com/vf"].is_string(), kind == Some("vf"));

        let drain: u64 = configured(config, "drain").strip_suffix('s').unwrap().parse().unwrap();
        assert!(pod["terminationGracePeriodSeconds"].as_u64() > Some(drain));

        let port = |name: &str| {
            let ports = container["ports"].as_array().unwrap();
            ports.iter().find(|port| port["name"] == name).unwrap()["containerPort"].to_string()
        };
        let ends_with_port = |key: &str, name: &str| configured(config, key).ends_with(&format!(":{}", port(name)));
        assert!(ends_with_port("metrics", "metrics") && ends_with_port("listen", "kv"), "{config}");
        for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
            let get = &container[probe]["httpGet"];
            assert_eq!((&get["path"], &get["port"]), (&"/metrics".into(), &"metrics".into()), "{probe}");
        }

        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(container["securityContext"]["capabilities"]["drop"], serde_json::json!(["ALL"]));
        let names = |list: &Value| {
            let mut names: Vec<_> = list.as_array().unwrap().iter().map(|item| item["name"].to_string()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&container["volumeMounts"]), names(&pod["volumes"]));
        assert_eq!(pod["volumes"][0]["configMap"]["name"], map["metadata"]["name"]);
        let deployment = &find_kind(&objects, "Deployment")["spec"];
        assert_eq!(deployment["selector"]["matchLabels"], deployment["template"]["metadata"]["labels"]);
        assert_eq!(deployment["selector"]["matchLabels"], find_kind(&objects, "Service")["spec"]["selector"]);
        assert!(container["image"].as_str().unwrap().ends_with(concat!(":", env!("CARGO_PKG_VERSION"))));
    }
}

/// Asserts exit status 1 (missing device or link) and not 2 (invalid option).
#[cfg(feature = "dpdk")]
#[test]
fn program_accepts_the_arguments_for_every_network() {
    let directory = tempfile::tempdir().unwrap();
    for kind in ["vf", "link"] {
        let Some(objects) = manifest(Some(kind)) else { return };
        let file = directory.path().join("kv.toml");
        fs::write(&file, find_kind(&objects, "ConfigMap")["data"]["kv.toml"].as_str().unwrap()).unwrap();
        let args = words(&pod(&objects)["containers"][0]).into_iter().map(|word| match word.as_str() {
            "/etc/linerate/kv.toml" => file.to_str().unwrap().to_owned(),
            "/run/switch/linerate.sock" => "/nonexistent/linerate.sock".to_owned(),
            _ => word.replace("$(PCIDEVICE_EXAMPLE_COM_VF)", "0000:ff:1f.7").replace("/run/switch", "/nonexistent"),
        });
        let output = program::run(linerate("").args(args).args(["--workers", "1"]));
        assert_eq!(output.status.code(), Some(1), "{kind}: {}", output.stderr);
    }
}

/// kubectl drops unknown fields when it sets a variable of a Deployment.
#[test]
fn kubectl_accepts_every_field_of_the_deployment() {
    if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        eprintln!("skipped: kubectl is not installed");
        return;
    }
    for kind in [None, Some("vf"), Some("link")] {
        let Some(objects) = manifest(kind) else { return };
        let deployment = find_kind(&objects, "Deployment");
        let mut kubectl = Command::new("kubectl");
        kubectl.args(["set", "env", "--local", "--filename=-", "--output=json", "CHECKED=yes"]);
        let read: Value = serde_json::from_str(&output_of(&mut kubectl, &deployment.to_string())).unwrap();
        assert_within(deployment, &read, "Deployment");
    }
}

/// Asserts that every field of `object` is in `read`. The notation of values may differ.
#[track_caller]
fn assert_within(object: &Value, read: &Value, path: &str) {
    match object {
        Value::Object(fields) => {
            for (name, value) in fields {
                assert!(!read[name].is_null(), "{path}: {name}");
                assert_within(value, &read[name], &format!("{path}.{name}"));
            }
        }
        Value::Array(values) => {
            assert_eq!(Some(values.len()), read.as_array().map(Vec::len), "{path}");
            values.iter().zip(read.as_array().unwrap()).for_each(|(value, read)| assert_within(value, read, path));
        }
        _ => {}
    }
}
