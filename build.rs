//! Embeds the shaders without their comments and indentation: a third of what they would add to the package.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=shaders");
    let mut entries = String::new();
    for (folder, prefix) in [("shaders", ""), ("shaders/lib", "lib/")] {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            names.extend(entry?.file_name().into_string().ok().filter(|name| name.ends_with(".wgsl")));
        }
        names.sort();
        for name in names {
            let text = fs::read_to_string(Path::new(folder).join(&name))?;
            let code = text.lines().map(|line| line.split("//").next().unwrap_or("").trim());
            let code: Vec<&str> = code.filter(|line| !line.is_empty()).collect();
            entries += &format!("({:?}, {:?}),\n", format!("{prefix}{name}"), code.join("\n"));
        }
    }
    fs::write(Path::new(&env::var("OUT_DIR")?).join("shaders.rs"), format!("&[\n{entries}]"))?;
    Ok(())
}
