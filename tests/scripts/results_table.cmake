# scripts/table: the README's table and picture and that of docs/needle.md as they stand there, and a table of whatever else
# it is said to take.
function(table file)
  execute_process(COMMAND ${PYTHON} ${SOURCE}/scripts/table results ${ARGN} ${file} RESULT_VARIABLE result
                  OUTPUT_VARIABLE out ERROR_VARIABLE out)
  set(result ${result} PARENT_SCOPE)
  set(out "${out}" PARENT_SCOPE)
endfunction()
function(has)
  foreach(part ${ARGN})
    string(FIND "${out}" "${part}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "no '${part}' in:\n${out}")
    endif()
  endforeach()
endfunction()

table(${SOURCE}/bench/results/needle-cpu-2core.json --tokens 64k,1M)
file(READ ${SOURCE}/docs/needle.md page)
string(FIND "${page}" "\n\n${out}\n" at)
if(result OR at EQUAL -1)
  message(FATAL_ERROR "not the table of docs/needle.md:\n${out}")
endif()

file(MAKE_DIRECTORY ${WORK})
execute_process(COMMAND ${PYTHON} ${SOURCE}/scripts/table front ${SOURCE}/bench/results/real/smollm2-8k.jsonl --plot
                        ${WORK}/token.svg RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
file(READ ${SOURCE}/README.md readme)
string(FIND "${readme}" "\n\n${out}\n" at)
if(result OR at EQUAL -1)
  message(FATAL_ERROR "not the README's table:\n${out}")
endif()
file(READ ${WORK}/token.svg drawn)
file(READ ${SOURCE}/docs/token.svg committed)
if(NOT drawn STREQUAL committed)
  message(FATAL_ERROR "docs/token.svg is not what scripts/table front draws")
endif()
set(figure "{\"test\": \"row_gather\", \"engine\": \"sm\", \"page_bytes\": 4096, \"node\": 1, \"footprint_bytes\": 1073741824,
  \"piece_bytes\": 512, \"order\": \"ascending\", \"value\": 30.25, \"unit\": \"GB/s\"}")
set(link "{\"complete\": true, \"link\": {\"skipped\": [\"pages of 1.0 GiB: none\"], \"figures\": [${figure}]}}")
set(bench "{\"schema\": \"hayloft.bench/1\", \"link\": \"sm\", \"layers\": 32, \"rows\": [{\"tokens\": 4096, \"columns\": \"f16\",
  \"attn\": \"sparq r=16\", \"ms_per_token\": 1.5, \"stage_ms\": {\"rows\": 0.5}, \"measured_layers\": 4}]}")
set(linked "| row_gather | sm | 4.0 KiB | 1 | 1.0 GiB | 512 B | ascending | 30.25 GB/s |" "- skipped: pages of 1.0 GiB: none")
set(benched "| 4,096 | f16 | sparq r=16 | sm | 1.50 | rows 0.50 |  | 4 of 32 |")
file(WRITE ${WORK}/link.json "${link}")
table(${WORK}/link.json)
has(${linked})
set(row "\"r\": null, \"k\": 8, \"hit\": true, \"decode_ms_per_token\": 1, \"link_bytes_per_token\": 2, \"near_bytes_per_token\": 3")
file(WRITE ${WORK}/needle.json "{\"schema\": \"hayloft.needle/1\", \"rows\": [
  {\"attn\": \"topk\", \"tokens\": 4096, \"attended_share\": 0.9, ${row}}, {\"attn\": \"topk\", \"tokens\": 8192, \"attended_share\": 0.1, ${row}}]}")
table(${WORK}/needle.json)
has("| 4,096 | topk k=8 * | 1 of 1 |" "| 8,192 | topk k=8 | 1 of 1 |" "attended to half of the context or more")
# Methods of the same k are told apart, and rows of one method need not follow each other.
foreach(method "topk k=8" "topk k=8 per=kv-head" "topk k=8")
  list(APPEND rows "{\"attn\": \"topk\", \"method\": \"${method}\", \"tokens\": 4096, ${row}}")
endforeach()
list(JOIN rows ", " rows)
file(WRITE ${WORK}/needle.json "{\"schema\": \"hayloft.needle/1\", \"complete\": false, \"rows\": [${rows}]}")
table(${WORK}/needle.json)
has("| 4,096 | topk k=8 | 2 of 2 |" "| 4,096 | topk k=8 per=kv-head | 1 of 1 |" "rows are missing")
file(WRITE ${WORK}/bench.json "${bench}")
table(${WORK}/bench.json)
has(${benched})
file(WRITE ${WORK}/gpu-check.json "{\"schema\": \"hayloft.gpu-check/1\", \"gpu\": \"A card\", \"device\": \"\", \"processor\": \"x\",
  \"processors\": 2, \"memory\": \"1 kB\", \"steps\": [
  {\"step\": \"link\", \"outcome\": \"passed\", \"seconds\": 1, \"data\": ${link}},
  {\"step\": \"bench-4k\", \"outcome\": \"passed\", \"seconds\": 1, \"data\": ${bench}},
  {\"step\": \"sanitizer\", \"outcome\": \"skipped\", \"seconds\": 0, \"data\": null}]}")
table(${WORK}/gpu-check.json)
has("A card; x, 2 processors, 1 kB" "**link**: passed in 1 s" ${linked} ${benched} "**sanitizer**: skipped in 0 s")

foreach(other "[1]" "{}" "none")
  file(WRITE ${WORK}/other.json "${other}")
  table(${WORK}/other.json)
  if(NOT result EQUAL 1 OR NOT out MATCHES "^scripts/table: [^\n]*other.json: [^\n]*\n$")
    message(FATAL_ERROR "${other}: ${result}\n${out}")
  endif()
endforeach()
