use super::*;
use clap::{Parser, Subcommand};
use std::io::Write;

#[derive(Debug, Parser)]
#[command(name = "program")]
struct Program {
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Group,
}

#[derive(Debug, Subcommand)]
enum Group {
    #[command(subcommand)]
    Kv(Kv),
    Doctor {
        #[arg(long)]
        json: bool,
        // A variable of every process.
        #[arg(long, env = "PATH")]
        path: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum Kv {
    Serve {
        #[arg(long)]
        listen: Vec<String>,
        #[arg(long, value_delimiter = ',')]
        ip: Vec<String>,
        #[arg(long)]
        memory: Option<String>,
        #[arg(long)]
        spin: bool,
        #[arg(long)]
        workers: Option<u32>,
    },
    Load {
        #[arg(long)]
        connect: Option<String>,
        #[arg(long)]
        theta: Option<f64>,
    },
}

fn built() -> Command {
    let mut program = <Program as clap::CommandFactory>::command();
    program.build();
    program
}

/// Merges `text` with the arguments `given`, in which FILE stands for the name of the file.
fn read(text: &str, given: &str) -> Result<String, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let name = file.path().to_str().unwrap();
    let given = given.replace("FILE", name).split_whitespace().map(OsString::from).collect();
    let merged = merge(&built(), given).map(|MergedArgs { args, .. }| {
        let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
        Program::try_parse_from(&args).unwrap();
        args.join(" ")
    });
    merged.map(|args| args.replace(name, "FILE")).map_err(|error| error.to_string().replace(name, "FILE"))
}

#[test]
fn command_line_without_a_file_is_unchanged() {
    assert_eq!(read("", "program -v kv serve --spin").unwrap(), "program -v kv serve --spin");
}

#[test]
fn options_of_the_file_precede_the_given_ones() {
    let text = "listen = ['10.0.0.2:7', '[::]:7']\nmemory = '1g'\nspin = true\nworkers = 1_0\nverbose = 2\n";
    let words = read(text, "program --config FILE kv serve --ip 10.0.0.2/24").unwrap();
    let (head, tail) = words.split_once(" kv serve ").unwrap();
    assert_eq!(head, "program --config FILE");
    let mut own: Vec<_> = tail.strip_suffix(" --ip 10.0.0.2/24").unwrap().split(' ').collect();
    own.sort_unstable();
    let expected =
        ["--listen=10.0.0.2:7", "--listen=[::]:7", "--memory=1g", "--spin", "--verbose", "--verbose", "--workers=10"];
    assert_eq!(own, expected);
}

#[test]
fn config_may_follow_the_command() {
    assert_eq!(read("spin = true", "program kv serve --config=FILE").unwrap(), "program kv serve --spin --config=FILE");
    assert_eq!(read("json = true", "program doctor --config FILE").unwrap(), "program doctor --json --config FILE");
}

#[test]
fn inner_table_overrides_outer_table() {
    let text = "memory = '1g'\nspin = true\n[kv]\nmemory = '2g'\n[kv.serve]\nmemory = '3g'\nspin = false\n\
                [kv.load]\ntheta = 0.9\n";
    assert_eq!(read(text, "program kv serve --config FILE").unwrap(), "program kv serve --memory=3g --config FILE");
    assert_eq!(read(text, "program kv load --config FILE").unwrap(), "program kv load --theta=0.9 --config FILE");
    assert_eq!(read(text, "program doctor --config FILE").unwrap(), "program doctor --config FILE");
}

#[test]
fn command_line_replaces_all_values_of_an_option() {
    let text = "listen = ['10.0.0.2:7', '10.0.0.3:7']\nmemory = '1g'\nverbose = 1\n";
    for given in [
        "program kv serve --listen 10.0.0.4:7 --memory=2g -v --config FILE",
        "program -vv kv serve --listen=10.0.0.4:7 --memory 2g --config FILE",
    ] {
        assert_eq!(read(text, given).unwrap(), given);
    }
}

#[test]
fn error_names_file_line_and_key() {
    for (text, part) in [
        ("spin = true\nmemroy = '1g'\n", "FILE:2: memroy: program has no such option: use memory"),
        ("[kv.serve]\nspni = true\n", "FILE:2: spni: program kv serve has no such option: use spin"),
        ("[kv.serve]\ntheta = 0.5\n", "FILE:2: theta: program kv serve has no such option"),
        ("\n[kv.sevre]\nspin = true\n", "FILE:2: sevre: program kv has no such command: use serve"),
        ("[kv.load]\nspin = true\n", "FILE:2: spin: program kv load has no such option"),
        ("spin = 'yes'\n", "FILE:1: spin: expected true or false, found string"),
        ("memory = true\n", "FILE:1: memory: expected a string or a number, found boolean"),
        ("memory = ['1g', '2g']\n", "FILE:1: memory: expected a string or a number, found array"),
        ("\n\nlisten = [true]\n", "FILE:3: listen: expected strings or numbers"),
        ("listen = false\n", "FILE:1: listen: expected a string, a number, or an array of them"),
        ("verbose = 'much'\n", "FILE:1: verbose: expected a number"),
        ("verbose = 256\n", "FILE:1: verbose: expected a number from 0 to 255"),
        ("config = 'other.toml'\n", "FILE:1: config: program has no such option"),
        ("spin = true\nspin = true\n", "FILE:2: "),
        ("spin = \n", "FILE:1: "),
        ("listen = 127.0.0.1\n", "FILE:1: invalid float, expected nothing: text needs quotation marks"),
    ] {
        let error = read(text, "program kv serve --config FILE").unwrap_err();
        assert!(error.starts_with(part) && error.lines().count() == 1, "{error}");
    }
    let missing = merge(&built(), ["program", "doctor", "--config", "/no/such"].map(OsString::from).into());
    assert!(missing.unwrap_err().to_string().starts_with("--config /no/such: No such file"));
}

#[test]
fn origin_belongs_to_the_first_option_of_a_message() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"\nmemory = '1q'\n").unwrap();
    let given = ["program", "kv", "serve", "--spin", "--config", file.path().to_str().unwrap()].map(OsString::from);
    let args = merge(&built(), given.into()).unwrap();
    let line = format!("{}:2", file.path().display());
    for message in ["--memory 1q: write a number", "--spin has no effect with --memory: leave it out"] {
        assert_eq!(args.origin_in(message), Some(line.as_str()), "{message}");
    }
    // The environment supplies the path to `doctor`, unless --path is on the command line.
    let origin = |words: &[&str]| {
        let words = words.iter().map(OsString::from).collect();
        merge(&built(), words).unwrap().origin_in("--path x: no such file").map(str::to_owned)
    };
    assert_eq!(args.origin_in("--spin, or --memory-limit"), None);
    assert_eq!(origin(&["program", "doctor"]).as_deref(), Some("PATH"));
    assert_eq!(origin(&["program", "doctor", "--path=x"]), None);
}
