#include "movie.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/opt.h>
#include <libswresample/swresample.h>
#include <libswscale/swscale.h>

#include "base/memory.h"
#include "base/text.h"

/* A number of threads that does not depend on the machine: x264's pictures depend on it. */
enum { THREADS = 8, AUDIO_BITS = 192000, LARGEST_SIDE = 16384 };

struct h3_movie {
    const char *path, *name;
    AVFormatContext *file;
    AVCodecContext *video, *audio;
    struct SwsContext *colours; /* RGB to YUV */
    SwrContext *samples;        /* planar floats to what the encoder takes */
    AVFrame *picture, *piece;
    AVPacket *packet;
    const h3_sound *sound;
    int64_t frames, sound_done;
};

static h3_status broken(const h3_movie *m, const char *what, int code)
{
    char why[AV_ERROR_MAX_STRING_SIZE] = "";
    av_strerror(code, why, sizeof why);
    return h3_error(H3_ENVIRONMENT, "%s: cannot %s (%s); check disk space and FFmpeg's encoders", m->name, what, why);
}

static h3_status no_memory(const h3_movie *m) { return broken(m, "get memory", AVERROR(ENOMEM)); }

h3_status h3_movie_encoder(const char **out, const char *wanted)
{
    static const char *const known[] = {"libx264", "mpeg4"};
    *out = NULL;
    av_log_set_level(AV_LOG_QUIET); /* what fails is said by our own message */
    if (avcodec_find_encoder_by_name("aac") == NULL) return h3_error(H3_ENVIRONMENT, "this FFmpeg has no AAC encoder; install the distribution's FFmpeg");
    for (size_t i = 0; i < sizeof known / sizeof *known && *out == NULL; i++)
        if ((wanted == NULL || strcmp(wanted, known[i]) == 0) && avcodec_find_encoder_by_name(known[i]) != NULL) *out = known[i];
    if (*out != NULL) return H3_OK;
    if (wanted != NULL && strcmp(wanted, known[0]) != 0 && strcmp(wanted, known[1]) != 0)
        return h3_error(H3_USAGE, "no video encoder %s; use libx264 or mpeg4", wanted);
    return h3_error(H3_ENVIRONMENT, "this FFmpeg lacks the video encoder %s; install the distribution's FFmpeg", wanted != NULL ? wanted : "libx264 or mpeg4");
}

/* --- opening --------------------------------------------------------------------------------------------------------- */

static h3_status add_stream(h3_movie *m, AVCodecContext *codec, AVDictionary **options)
{
    int code;
    if (m->file->oformat->flags & AVFMT_GLOBALHEADER) codec->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    codec->flags |= AV_CODEC_FLAG_BITEXACT;
    if ((code = avcodec_open2(codec, codec->codec, options)) < 0) return broken(m, "start an encoder", code);
    AVStream *stream = avformat_new_stream(m->file, NULL);
    if (stream == NULL) return no_memory(m);
    stream->time_base = codec->time_base;
    if ((code = avcodec_parameters_from_context(stream->codecpar, codec)) < 0) return broken(m, "describe a stream", code);
    return H3_OK;
}

static h3_status open_video(h3_movie *m, const char *encoder, int64_t height, int64_t width)
{
    AVDictionary *options = NULL;
    const AVCodec *codec = avcodec_find_encoder_by_name(encoder);
    m->video = codec == NULL ? NULL : avcodec_alloc_context3(codec);
    if (m->video == NULL) return no_memory(m);
    m->video->width = (int)width;
    m->video->height = (int)height;
    m->video->pix_fmt = AV_PIX_FMT_YUV420P;
    m->video->time_base = (AVRational){1, H3_MOVIE_FPS};
    m->video->framerate = (AVRational){H3_MOVIE_FPS, 1};
    m->video->sample_aspect_ratio = (AVRational){1, 1};
    m->video->color_primaries = AVCOL_PRI_BT709;
    m->video->color_trc = AVCOL_TRC_BT709;
    m->video->colorspace = AVCOL_SPC_BT709;
    m->video->color_range = AVCOL_RANGE_MPEG;
    m->video->thread_count = THREADS;
    if (codec->id == AV_CODEC_ID_H264) {
        av_dict_set(&options, "preset", "medium", 0);
        av_dict_set(&options, "crf", "18", 0);
        av_dict_set(&options, "profile", "high", 0);
    } else {
        m->video->flags |= AV_CODEC_FLAG_QSCALE;
        m->video->global_quality = 2 * FF_QP2LAMBDA;
    }
    h3_status status = add_stream(m, m->video, &options);
    av_dict_free(&options);
    return status;
}

static h3_status open_audio(h3_movie *m)
{
    const AVCodec *codec = avcodec_find_encoder_by_name("aac");
    int known = codec != NULL && codec->supported_samplerates == NULL;
    for (const int *rate = codec == NULL ? NULL : codec->supported_samplerates; rate != NULL && *rate != 0; rate++) known |= *rate == m->sound->rate;
    if (!known) return h3_error(H3_USAGE, "%s: AAC knows no sound of %lld samples a second", m->name, (long long)m->sound->rate);
    m->audio = avcodec_alloc_context3(codec);
    if (m->audio == NULL) return no_memory(m);
    m->audio->sample_rate = (int)m->sound->rate;
    m->audio->sample_fmt = codec->sample_fmts != NULL ? codec->sample_fmts[0] : AV_SAMPLE_FMT_FLTP;
    m->audio->bit_rate = AUDIO_BITS;
    m->audio->time_base = (AVRational){1, (int)m->sound->rate};
    av_channel_layout_default(&m->audio->ch_layout, (int)m->sound->channels);
    return add_stream(m, m->audio, NULL);
}

/* 8-bit RGB of full range to BT.709 of limited range, both said outright: the default would be BT.601. Samples keep their rate. */
static h3_status open_converters(h3_movie *m)
{
    const int width = m->video->width, height = m->video->height, *table = sws_getCoefficients(SWS_CS_ITU709);
    m->colours = sws_getContext(width, height, AV_PIX_FMT_RGB24, width, height, AV_PIX_FMT_YUV420P, SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP | SWS_BITEXACT, NULL, NULL, NULL);
    if (m->colours == NULL) return no_memory(m);
    if (sws_setColorspaceDetails(m->colours, table, 1, table, 0, 0, 1 << 16, 1 << 16) < 0) return broken(m, "convert colours", AVERROR(EINVAL));
    AVChannelLayout *layout = &m->audio->ch_layout;
    int code = swr_alloc_set_opts2(&m->samples, layout, m->audio->sample_fmt, m->audio->sample_rate, layout, AV_SAMPLE_FMT_FLTP, m->audio->sample_rate, 0, NULL);
    if (code >= 0) code = swr_init(m->samples);
    return code < 0 ? broken(m, "convert samples", code) : H3_OK;
}

static h3_status open_buffers(h3_movie *m)
{
    m->packet = av_packet_alloc();
    m->picture = av_frame_alloc();
    m->piece = av_frame_alloc();
    if (m->packet == NULL || m->picture == NULL || m->piece == NULL) return no_memory(m);
    m->picture->format = m->video->pix_fmt;
    m->picture->width = m->video->width;
    m->picture->height = m->video->height;
    m->picture->color_primaries = m->video->color_primaries;
    m->picture->color_trc = m->video->color_trc;
    m->picture->colorspace = m->video->colorspace;
    m->picture->color_range = m->video->color_range;
    m->piece->format = m->audio->sample_fmt;
    m->piece->sample_rate = m->audio->sample_rate;
    m->piece->nb_samples = m->audio->frame_size > 0 ? m->audio->frame_size : 1024;
    if (av_channel_layout_copy(&m->piece->ch_layout, &m->audio->ch_layout) < 0 || av_frame_get_buffer(m->picture, 0) < 0 || av_frame_get_buffer(m->piece, 0) < 0)
        return no_memory(m);
    return H3_OK;
}

static h3_status open_file(h3_movie *m)
{
    AVDictionary *options = NULL;
    char url[H3_PATH_MAX];
    H3_TRY(h3_path(url, "file:%s", m->path)); /* a colon in a path is no protocol */
    int code = avio_open(&m->file->pb, url, AVIO_FLAG_WRITE);
    if (code < 0) return broken(m, "write", code);
    m->file->flags |= AVFMT_FLAG_BITEXACT;
    m->file->url = av_strdup(url); /* faststart opens it again */
    if (m->file->url == NULL) return no_memory(m);
    av_dict_set(&options, "movflags", "+faststart", 0);
    code = avformat_write_header(m->file, &options);
    av_dict_free(&options);
    return code < 0 ? broken(m, "write the header", code) : H3_OK;
}

static h3_status open_all(h3_movie *m, const char *encoder, int64_t height, int64_t width)
{
    int code = avformat_alloc_output_context2(&m->file, NULL, "mp4", NULL);
    if (code < 0) return broken(m, "make an MP4 file", code);
    H3_TRY(open_video(m, encoder, height, width));
    H3_TRY(open_audio(m));
    H3_TRY(open_converters(m));
    H3_TRY(open_buffers(m));
    return open_file(m);
}

h3_status h3_movie_open(h3_movie **out, const char *path, const char *name, const char *encoder, int64_t height, int64_t width, const h3_sound *sound)
{
    void *memory;
    *out = NULL;
    if (height < 2 || width < 2 || height % 2 != 0 || width % 2 != 0 || height > LARGEST_SIDE || width > LARGEST_SIDE)
        return h3_error(H3_USAGE, "%s: frames of %lld x %lld pixels; a preview needs even sides of 2 to %d", name, (long long)width, (long long)height, LARGEST_SIDE);
    H3_TRY(h3_sound_check(sound, name));
    H3_TRY(h3_alloc(&memory, 1, sizeof **out, "a movie"));
    h3_movie *m = memory;
    m->path = path;
    m->name = name;
    m->sound = sound;
    h3_status status = open_all(m, encoder, height, width);
    if (status == H3_OK) *out = m;
    else h3_movie_close(m);
    return status;
}

/* --- encoding -------------------------------------------------------------------------------------------------------- */

/* frame NULL: the encoder gives what it still holds. */
static h3_status encode(h3_movie *m, AVCodecContext *codec, int stream, const AVFrame *frame)
{
    int code = avcodec_send_frame(codec, frame);
    while (code >= 0) {
        code = avcodec_receive_packet(codec, m->packet);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return H3_OK;
        if (code < 0) break;
        if (stream == 0 && m->packet->duration == 0) m->packet->duration = 1;
        av_packet_rescale_ts(m->packet, codec->time_base, m->file->streams[stream]->time_base);
        m->packet->stream_index = stream;
        code = av_interleaved_write_frame(m->file, m->packet);
    }
    return broken(m, stream == 0 ? "encode or write a picture" : "encode or write the sound", code);
}

/* Samples up to number `until`, in the encoder's pieces; the last piece may be short, so it comes only at the end. */
static h3_status add_sound(h3_movie *m, int64_t until, int last)
{
    const int64_t piece = m->audio->frame_size > 0 ? m->audio->frame_size : 1024;
    const uint8_t *planes[H3_SOUND_CHANNELS];
    while (m->sound_done < until) {
        const int64_t left = m->sound->frames - m->sound_done;
        if (left < piece && !last) return H3_OK;
        const int count = (int)(left < piece ? left : piece);
        m->piece->nb_samples = (int)piece; /* as much as it has room for */
        if (av_frame_make_writable(m->piece) < 0) return no_memory(m);
        m->piece->nb_samples = count;
        for (int64_t c = 0; c < m->sound->channels; c++) planes[c] = (const uint8_t *)(m->sound->samples + c * m->sound->frames + m->sound_done);
        const int given = swr_convert(m->samples, m->piece->data, count, planes, count);
        if (given != count) return broken(m, "convert samples", given < 0 ? given : AVERROR(EINVAL));
        m->piece->pts = m->sound_done;
        H3_TRY(encode(m, m->audio, 1, m->piece));
        m->sound_done += count;
    }
    return H3_OK;
}

h3_status h3_movie_add(h3_movie *m, const unsigned char *rgb)
{
    const uint8_t *planes[4] = {rgb};
    const int strides[4] = {3 * m->video->width};
    if (av_frame_make_writable(m->picture) < 0) return no_memory(m);
    if (sws_scale(m->colours, planes, strides, 0, m->video->height, m->picture->data, m->picture->linesize) != m->video->height)
        return broken(m, "convert a picture", AVERROR(EINVAL));
    m->picture->pts = m->frames++;
    if (m->video->flags & AV_CODEC_FLAG_QSCALE) m->picture->quality = m->video->global_quality;
    H3_TRY(encode(m, m->video, 0, m->picture));
    const int64_t until = m->frames * m->sound->rate / H3_MOVIE_FPS;
    return add_sound(m, until < m->sound->frames ? until : m->sound->frames, 0);
}

h3_status h3_movie_finish(h3_movie *m, const char *comment)
{
    if (m->frames == 0) return h3_error(H3_FAILED, "%s: a movie without a frame", m->name);
    H3_TRY(add_sound(m, m->sound->frames, 1));
    H3_TRY(encode(m, m->video, 0, NULL));
    H3_TRY(encode(m, m->audio, 1, NULL));
    if (av_dict_set(&m->file->metadata, "comment", comment, 0) < 0) return no_memory(m); /* written with the index, at the end */
    int code = av_write_trailer(m->file);
    if (code >= 0) code = avio_closep(&m->file->pb);
    return code < 0 ? broken(m, "finish the file", code) : H3_OK;
}

void h3_movie_close(h3_movie *m)
{
    if (m == NULL) return;
    if (m->file != NULL && m->file->pb != NULL) avio_closep(&m->file->pb);
    avcodec_free_context(&m->video);
    avcodec_free_context(&m->audio);
    sws_freeContext(m->colours);
    swr_free(&m->samples);
    av_frame_free(&m->picture);
    av_frame_free(&m->piece);
    av_packet_free(&m->packet);
    avformat_free_context(m->file);
    free(m);
}
