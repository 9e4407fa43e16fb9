# cmake --install: libraries and headers for find_package(hayloft), the program, and the bundled model.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hayloft)

# The public headers; the rest of a folder is its own business. tests/package compiles each of them alone, as installed.
set(public_headers
    offload/error.h offload/text/format.h offload/half.h offload/text/utf8.h
    offload/host/arena.h offload/host/cgroup.h offload/host/mapped_file.h offload/host/threads.h offload/host/topology.h
    offload/store/column_formats.h offload/store/columns.h offload/store/layout.h offload/store/planes.h
    offload/store/quantise.h offload/store/rows.h offload/store/shard.h offload/store/store.h
    offload/snapshot/snapshot.h offload/snapshot/writer.h
    index/ann/ann.h index/scan/exact_search.h index/scan/kept_scores.h index/scan/ranking_options.h index/scan/run_cache.h index/scan/search.h index/scan/sparq_query.h
    gpu/backend.h gpu/packed.h gpu/products.h gpu/sparse_causal.h gpu/buffer.h gpu/device_options.h gpu/cuda_memory.h gpu/gated_delta.h gpu/hot_reads.h gpu/layer_steps.h gpu/link_choice.h gpu/make_backend.h gpu/rest_step.h gpu/step.h
    runtime/chat/chat_template.h runtime/tokenizer/end_of_turn.h runtime/tokenizer/text_stream.h runtime/tokenizer/tokenizer.h
    runtime/checkpoint/architecture.h runtime/checkpoint/config.h runtime/checkpoint/rope.h runtime/checkpoint/safetensors.h runtime/checkpoint/weights/expert_placement.h runtime/checkpoint/weights/weights.h
    runtime/decode/draft_head.h runtime/decode/draft_length.h runtime/decode/drafting.h runtime/decode/lookup.h runtime/decode/prefill_read.h runtime/peers/communicator.h runtime/cluster/rank_attender.h
    runtime/cache/cache.h runtime/cache/cache_size.h runtime/cache/spills.h
    runtime/attention/attention_rates.h runtime/attention/budget.h runtime/attention/counters.h runtime/attention/host_tail.h
    runtime/attention/method.h runtime/attention/method_ladder.h runtime/attention/method_options.h runtime/attention/method_state.h runtime/attention/selection_plan.h
    runtime/attention/attender.h runtime/attention/ranking.h runtime/attention/rest.h runtime/attention/step.h
    runtime/attention/step_observer.h runtime/attention/predicted_error.h runtime/attention/approximate_tokens.h
    runtime/decode/attention_policy.h runtime/chat/conversation.h runtime/decode/decode_attention.h runtime/decode/prefill_attention.h
    runtime/decode/expert_slots.h runtime/decode/expert_uses.h runtime/decode/hidden_states.h runtime/decode/load_tokenizer.h runtime/decode/model.h runtime/decode/prefill.h
    runtime/decode/router.h runtime/decode/sampler.h runtime/decode/sampler_rules.h runtime/decode/token_filter.h runtime/chat/load_chat_template.h runtime/chat/sampling_defaults.h runtime/decode/session.h
    runtime/fidelity/attention_stats.h runtime/fidelity/audit.h runtime/fidelity/audit_report.h
    runtime/fidelity/audit_sample.h runtime/fidelity/fidelity_control.h runtime/fidelity/ranking.h runtime/fidelity/running_stats.h)
set(eval_headers
    runtime/eval/eval.h runtime/eval/ruler/ruler.h runtime/eval/task.h
    runtime/eval/needle/context.h runtime/eval/needle/haystack.h runtime/eval/needle/needle.h
    runtime/eval/needle/text.h runtime/eval/needle/words.h)

# Headers keep their folder, since they include each other as "offload/store/store.h".
foreach(header IN LISTS public_headers eval_headers)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hayloft/${folder})
endforeach()

install(TARGETS hayloft_offload hayloft_index hayloft_gpu hayloft_runtime hayloft_cluster hayloft_eval EXPORT hayloftTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT hayloftTargets NAMESPACE hayloft:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/hayloftConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/hayloftConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hayloftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hayloftConfig.cmake ${PROJECT_BINARY_DIR}/hayloftConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/Dependencies.cmake ${PROJECT_SOURCE_DIR}/cmake/Need.cmake
        DESTINATION ${package_dir})

install(TARGETS hayloft RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(HAYLOFT_HAS_MPI)  # which the program finds from where it lies; not in the bundle, since MPI is the cluster's own
  install(TARGETS hayloft_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/hayloft)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/needle-model/model/
        DESTINATION ${CMAKE_INSTALL_DATADIR}/hayloft/needle-model OPTIONAL)
