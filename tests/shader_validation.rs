//! Every variant of every kernel composes, parses, validates, and keeps to the limits every WebGPU device has.

use draftree::backend::gpu::kernels::Variant;
use draftree::backend::gpu::shader::{self, BindingKind, SOURCES};
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// WebGPU's default `maxStorageBuffersPerShaderStage`.
const MAX_STORAGE_BUFFERS: usize = 8;
/// WebGPU's default `maxComputeWorkgroupStorageSize`, in bytes.
const MAX_WORKGROUP_BYTES: u32 = 16 << 10;

#[test]
fn every_variant_is_valid_wgsl_within_the_default_limits() {
    let variants = Variant::all();
    assert!(variants.len() > 100, "11 kernels in {} variants", variants.len());
    for (variant, quads) in variants.into_iter().flat_map(|variant| [(variant, false), (variant, true)]) {
        let source = variant.source(quads).unwrap();
        let module = naga::front::wgsl::parse_str(&source)
            .unwrap_or_else(|e| panic!("{variant:?}: {}", e.emit_to_string(&source)));
        let subgroups = if quads { Capabilities::SUBGROUP } else { Capabilities::empty() };
        Validator::new(ValidationFlags::all(), Capabilities::SHADER_FLOAT16_IN_FLOAT32 | subgroups)
            .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
            .subgroup_operations(naga::valid::SubgroupOperationSet::all())
            .validate(&module)
            .unwrap_or_else(|e| panic!("{variant:?}: {}", e.emit_to_string(&source)));
        assert_eq!(module.entry_points.len(), 1, "{variant:?}");
        assert_eq!(module.entry_points[0].name, variant.kernel.name(), "the entry point bears the file's name");

        let storage = shader::bindings(&source).iter().filter(|&&kind| kind != BindingKind::Uniform).count();
        assert!(storage <= MAX_STORAGE_BUFFERS, "{variant:?} binds {storage} storage buffers");
        let workgroup: u32 = module
            .global_variables
            .iter()
            .filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup)
            .map(|(_, v)| module.types[v.ty].inner.size(module.to_ctx()))
            .sum();
        assert!(workgroup <= MAX_WORKGROUP_BYTES, "{variant:?} uses {workgroup} bytes of workgroup memory");
    }
}

#[test]
fn bindings_are_read_as_the_parser_reads_them() {
    for variant in Variant::all() {
        let source = variant.source(false).unwrap();
        let module = naga::front::wgsl::parse_str(&source).unwrap();
        let mut parsed: Vec<_> = module
            .global_variables
            .iter()
            .filter_map(|(_, v)| v.binding.as_ref().map(|binding| (binding.binding, v.space)))
            .map(|(index, space)| {
                let kind = match space {
                    naga::AddressSpace::Uniform => BindingKind::Uniform,
                    naga::AddressSpace::Storage { access } if access.contains(naga::StorageAccess::STORE) => {
                        BindingKind::Storage
                    }
                    _ => BindingKind::ReadOnlyStorage,
                };
                (index, kind)
            })
            .collect();
        parsed.sort_by_key(|&(index, _)| index);
        let expected: Vec<_> = (0..).zip(shader::bindings(&source)).collect();
        assert_eq!(parsed, expected, "{variant:?}");
    }
}

#[test]
fn every_shader_file_is_embedded() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let mut on_disk = Vec::new();
    for (folder, prefix) in [(root.clone(), ""), (root.join("lib"), "lib/")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".wgsl") {
                on_disk.push(format!("{prefix}{name}"));
            }
        }
    }
    on_disk.sort();
    let mut embedded: Vec<_> = SOURCES.iter().map(|(name, _)| (*name).to_owned()).collect();
    embedded.sort();
    assert_eq!(on_disk, embedded);
}

#[test]
fn an_import_that_names_nothing_is_an_error() {
    assert!(shader::compose("no_such.wgsl", &[]).is_err());
    assert!(shader::compose("qkv.wgsl", &[]).is_err());
}
